"""A file that cannot be written is refused before the measuring, in one sentence."""

import os
from pathlib import Path

import pytest

from tests.setup.test_cli import workbench
from workbench.commands.out_files import writable, write_file
from workbench.errors import RequestError

COMMANDS = (
    ("quality", "--report"), ("calibrate", "plan", "--out"), ("calibrate", "state", "--out"),
    ("calibrate", "ranks", "--rank", "8", "--out"),
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_such_folder(command: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "none" / "file.json"
    done = workbench(*command, str(path))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"{path} cannot be written: there is no folder {path.parent}\n"


def test_a_folder_and_a_file_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert writable(None) is None and writable(tmp_path / "new") == tmp_path / "new"
    with pytest.raises(RequestError, match="is a folder: name a file to write"):
        writable(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write all
    with pytest.raises(RequestError, match="cannot be written: name a file that you may write"):
        writable(tmp_path / "new")


def test_a_full_disk() -> None:
    with pytest.raises(RequestError, match=r"\(No space left on device\): name a file elsewhere"):
        write_file(Path("/dev/full"), b"x")
