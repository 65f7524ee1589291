"""Each lesson runs, is in step with its script, and reads where nothing can run."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.model.fetch import cached_path

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
names = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)


def cells(lesson: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    return found


def outputs(lesson: Path) -> list[dict[str, Any]]:
    return [output.get("data", {}) for cell in cells(lesson) for output in cell.get("outputs", [])]


def test_there_is_a_lesson() -> None:
    assert [path.stem for path in LESSONS][:1] == ["01_paged_cache"]


@names
@pytest.mark.timeout(600)
def test_it_runs_and_what_it_asserts_holds(lesson: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cached_path() is None:
        pytest.fail("the default model is not here: run `workbench model fetch`")
    monkeypatch.setenv("KVW_FAST", "1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbmake", "--nbmake-timeout=500", "-q", "-p",
         "no:cacheprovider", "--timeout=0", "--override-ini=addopts=", str(lesson)],
        capture_output=True, text=True, check=False, cwd=NOTEBOOKS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@names
def test_script_and_notebook_say_the_same(lesson: Path) -> None:
    import jupytext

    script = jupytext.read(lesson.with_suffix(".py"))
    notebook = jupytext.read(lesson)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in script.cells
    ], f"run `python notebooks/refresh.py {lesson.stem}`"
    assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"


@names
def test_it_reads_on_a_code_host(lesson: Path) -> None:
    data = outputs(lesson)
    assert sum("image/svg+xml" in item for item in data) >= 3
    kinds = {kind for item in data for kind in item}
    assert not any("widget" in kind for kind in kinds)
    assert "widgets" not in json.loads(lesson.read_text(encoding="utf-8"))["metadata"]
    assert lesson.stat().st_size < 200_000


@names
def test_it_asks_before_it_tells_and_asserts_in_sight(lesson: Path) -> None:
    sources = ["".join(cell["source"]) for cell in cells(lesson) if cell["cell_type"] == "code"]
    asked = [at for at, source in enumerate(sources) if ".ask()" in source]
    told = [at for at, source in enumerate(sources) if ".reveal(" in source]
    assert len(asked) == len(told) >= 3
    assert all(before < after for before, after in zip(asked, told, strict=True))
    assert sum("assert " in source for source in sources) >= len(told)
    assert all("hide" not in tag for cell in cells(lesson)
               for tag in cell["metadata"].get("tags", []))  # fmt: skip


@pytest.mark.parametrize(
    ("value", "guess", "words"),
    [
        (0.1, "few", "**You had it right. Measured: 10**, so “few”."),
        (0.5, "few", "**You said “few”. Measured: 10**, so “some”."),
        (9.0, None, "**Measured: 10**, so “all”."),
    ],
)
def test_a_prediction_is_judged_by_the_measurement(
    value: float, guess: str | None, words: str, lesson_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    lesson = importlib.import_module("lesson")
    said: list[Any] = []
    monkeypatch.setattr(lesson, "display", said.append)
    question = lesson.Prediction(["few", "some", "all"], bounds=[0.3, 0.8])
    question.ask()
    said[0].value = guess
    question.reveal(value, "10")
    assert said[1].data == words


def test_a_prediction_without_enough_bounds_is_refused(lesson_path: Path) -> None:
    lesson = importlib.import_module("lesson")
    with pytest.raises(ValueError, match="3 choices need 2 bounds, not 1"):
        lesson.Prediction(["few", "some", "all"], bounds=[0.3])
