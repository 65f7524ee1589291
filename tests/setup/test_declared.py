"""Every package that the code imports is one that its install brings."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

OURS = {"app", "workbench", "kvkernels", "bench"}
# Read only where such a package may be absent: Jupyter brings its shell, the tests the browser.
EXTRAS = {"notebook", "test", "transports", "gds"}
# Wheels of modules that need not be installed here.
WHEELS = {"mooncake": "mooncake-transfer-engine-non-cuda", "kvikio": "kvikio-cu12"}


def imports(folder: Path) -> Iterator[tuple[str, Path]]:
    """Each top-level module from outside that a file of `folder` imports, with the file."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in OURS:
                    yield top, path


def normal(requirement: str) -> str:
    """The name a requirement asks for, as PyPI compares names."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def declared(repo_root: Path) -> tuple[set[str], set[str]]:
    """What every install brings, and what the extras add."""
    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    extras = {normal(r) for name in EXTRAS for r in project["optional-dependencies"][name]}
    return {normal(requirement) for requirement in project["dependencies"]}, extras


def undeclared(folder: Path, allowed: set[str]) -> set[str]:
    """`module (file)` of each import whose package is not among `allowed`."""
    packages = importlib.metadata.packages_distributions()
    return {
        f"{top} ({path.relative_to(folder.parent)})"
        for top, path in imports(folder)
        if not {normal(name) for name in packages.get(top, [WHEELS.get(top, top)])} & allowed
    }


@pytest.mark.parametrize("folder", ["app", "workbench", "kernels"])
def test_what_the_code_imports_is_declared(repo_root: Path, folder: str) -> None:
    always, extras = declared(repo_root)
    assert undeclared(repo_root / folder, always | extras) == set()


def test_what_only_an_extra_brings_is_imported_in_few_files(repo_root: Path) -> None:
    """A plain install must open the dashboard: only these may, and say so where it is absent."""
    always, _ = declared(repo_root)
    files = {
        entry.split("(")[1].rstrip(")")
        for folder in ("app", "workbench", "kernels")
        for entry in undeclared(repo_root / folder, always)
    }
    assert files <= {
        "app/components/live_view/widget.py",
        "workbench/spatial/hierarchy/disk_transports.py",
        "workbench/spatial/hierarchy/mooncake_library.py",
        "workbench/lab/notebook_grid.py",
        "workbench/lab/ui_bench.py",
        "workbench/lab/ui_page.py",
        "workbench/lab/ui_server.py",
    }


def test_an_undeclared_import_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a.py").write_text("import json\nimport numpy as np\nfrom torch import nn\n")
    assert undeclared(folder, {"numpy"}) == {"torch (code/a.py)"}


def test_every_declared_package_is_pinned(repo_root: Path) -> None:
    always, extras = declared(repo_root)
    lines = (repo_root / "constraints.txt").read_text().splitlines()
    pinned = {normal(line) for line in lines if "==" in line and not line.startswith("#")}
    assert (always | extras) - {"kv-workbench"} <= pinned
