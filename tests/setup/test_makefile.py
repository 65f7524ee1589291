"""`make app` where something is missing: it says so before anything is downloaded."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from workbench.commands import bench


def test_make_bench_runs_every_bench(repo_root: Path) -> None:
    """Those of the command line, and each that the figures' page has a section for."""
    text = (repo_root / "Makefile").read_text()
    looped = re.findall(r"^BENCHES := (.*)$", text, re.MULTILINE)[0].split()
    assert "for name in $(BENCHES); do" in text
    assert set(looped) == set(get_command(bench.build_app()).commands)  # type: ignore[attr-defined]
    sections = re.findall(
        r"^## `workbench bench ([a-z-]+)", (repo_root / "docs/benchmarks.md").read_text(), re.M
    )
    assert len(sections) > 5 and set(sections) <= set(looped)
    assert "workbench check --steps 5000" in text.replace("$(BIN)/", "")


@pytest.fixture
def project(repo_root: Path, tmp_path: Path) -> Path:
    """A copy of what `make app` reads before it downloads anything."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(repo_root / name, tmp_path)
    (tmp_path / "workbench").mkdir()
    shutil.copy(repo_root / "workbench/preflight.py", tmp_path / "workbench")
    return tmp_path


def make(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=project, capture_output=True, text=True, timeout=60
    )


def test_no_python_at_all(project: Path) -> None:
    done = make(project, "app", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "no-such-python is not on this machine: sudo apt install python3" in done.stderr
    assert not (project / ".venv").exists()


def test_python_without_ensurepip_is_told_debians_package(project: Path) -> None:
    """A Python whose standard library lacks ensurepip, as Debian ships it."""
    script = project / "debian-python"
    script.write_text(
        "#!/bin/sh\n"
        "exec python3 -c 'import sys, runpy, importlib.util as u\n"
        "real = u.find_spec\n"
        'u.find_spec = lambda name, package=None: None if name == "ensurepip" else real(name)\n'
        "sys.argv = sys.argv[1:]\n"
        'runpy.run_path(sys.argv[0], run_name="__main__")\' "$@"\n'
    )
    script.chmod(0o755)
    done = make(project, "app", f"PYTHON={script}")
    assert done.returncode != 0
    assert "its module ensurepip is missing" in done.stderr
    assert "sudo apt install python3-venv" in done.stderr
    assert "Python    3." in done.stdout and "Download  about" in done.stdout
    assert not (project / ".venv").exists()


def test_nothing_is_installed_twice(project: Path) -> None:
    """With its stamps in place `make app` goes straight to the model and the dashboard."""
    (project / ".venv").mkdir()
    for stamp in (".created", ".installed"):
        (project / ".venv" / stamp).touch()
    shown = make(project, "--dry-run", "app").stdout
    assert "pip" not in shown
    steps = ["workbench model fetch", "preflight.py start 8501", "streamlit run app"]
    assert [shown.index(step) for step in steps] == sorted(shown.index(step) for step in steps)
