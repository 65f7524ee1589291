"""Runs the notebooks with still pictures and writes them as they are committed.

`python notebooks/refresh.py [name ...]`: each `.py` is turned into its `.ipynb`, executed, and
stripped of what changes from run to run.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def notebooks() -> list[Path]:
    """The lessons' scripts, in order."""
    return sorted(HERE.glob("[0-9][0-9]_*.py"))


def refresh(script: Path) -> None:
    """Execute one lesson and write its notebook; the error of a failing cell is raised."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(script)
    client = NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(HERE)}}, store_widget_state=False
    )
    client.execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
    notebook.metadata.pop("language_info", None)
    jupytext.write(notebook, script.with_suffix(".ipynb"))


def main(names: list[str]) -> None:
    """Refresh the named lessons, or all."""
    os.environ["KVW_STILL"] = "1"
    for script in notebooks():
        if not names or script.stem in names:
            print(f"{script.name}: running")
            refresh(script)


if __name__ == "__main__":
    main(sys.argv[1:])
