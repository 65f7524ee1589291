"""In CI a test that skips itself fails, and elsewhere it may."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

def test_passes():
    pass

def test_skips():
    pytest.skip("this machine forbids mounting")

@pytest.mark.skipif(True, reason="there is a GPU here")
def test_by_design():
    pass

@pytest.mark.long
def test_long():
    pytest.skip("not today")

@pytest.mark.xfail(strict=True)
def test_expected():
    assert False
"""
ABSENT = 'import pytest\npytest.importorskip("no_such_module")\ndef test_it():\n    pass\n'


@pytest.mark.parametrize(("ci", "outcome"), [
    ("true", "2 failed, 1 passed, 2 skipped, 1 xfailed"),
    ("", "1 passed, 4 skipped, 1 xfailed"),
])  # fmt: skip
def test_skips_fail_in_ci(ci: str, outcome: str, repo_root: Path, tmp_path: Path) -> None:
    (tmp_path / "test_skipping.py").write_text(TESTS)
    (tmp_path / "test_absent.py").write_text(ABSENT)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: slow\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.no_skips", "-p", "no:cacheprovider"]
    command += ["-p", "no:hypothesispytest", "--continue-on-collection-errors", str(tmp_path)]
    done = subprocess.run(command, cwd=repo_root, env=os.environ | {"CI": ci},
                          capture_output=True, text=True, timeout=100)  # fmt: skip
    last = done.stdout.strip().splitlines()[-1]
    shown = last.replace("1 error", "1 failed").strip("= ")
    assert done.returncode == (1 if ci else 0), done.stdout
    for part in outcome.split(", "):
        if part != "2 failed":
            assert part in last, done.stdout
    assert ("(in CI no test may be skipped)" in done.stdout) == bool(ci), shown
    assert ("no_such_module" in done.stdout) == bool(ci)
