"""The check before any download: what it says on machines that lack something."""

import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from workbench import preflight


@pytest.mark.parametrize("version", [(2, 7), (3, 6, 15), (3, 10, 99)])
def test_old_python_names_the_remedy(version: tuple[int, ...]) -> None:
    message = preflight.version_problem(version)
    assert message is not None
    assert message.startswith(f"Python {version[0]}.{version[1]} is too old")
    assert "3.11 or newer" in message and "make app PYTHON=python3.11" in message


@pytest.mark.parametrize("version", [(3, 11), (3, 11, 0), (3, 14, 1)])
def test_new_python_is_fine(version: tuple[int, ...]) -> None:
    assert preflight.version_problem(version) is None


@pytest.mark.parametrize(
    ("has_venv", "has_ensurepip", "missing"),
    [(False, False, "venv"), (False, True, "venv"), (True, False, "ensurepip")],
)
def test_missing_venv_names_debians_package(
    has_venv: bool, has_ensurepip: bool, missing: str
) -> None:
    message = preflight.venv_problem(has_venv, has_ensurepip, "/usr/bin/python3")
    assert message is not None
    assert f"its module {missing} is missing" in message
    assert "sudo apt install python3-venv" in message


def test_complete_python_is_fine() -> None:
    assert preflight.venv_problem(True, True, "python3") is None


def test_full_disk_says_how_much_is_needed() -> None:
    message = preflight.disk_problem(10**9, 2.6, "/somewhere")
    assert message is not None
    assert message.startswith("/somewhere has 1.0 GB free and the installation needs 2.6 GB")
    assert preflight.disk_problem(3 * 10**9, 2.6, "/somewhere") is None


def test_ssh_login_gets_the_tunnel_line() -> None:
    environ = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22", "USER": "ada"}
    assert preflight.tunnel_line(environ, 8501) == "ssh -L 8501:localhost:8501 ada@10.0.0.2"
    environ["SSH_CONNECTION"] = "10.0.0.1 50000 10.0.0.2 2222"
    assert preflight.tunnel_line(environ, 9000) == "ssh -L 9000:localhost:9000 -p 2222 ada@10.0.0.2"
    assert preflight.tunnel_line({}, 8501) is None


def test_port_in_use_names_port_and_remedy(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert preflight.main(["start", str(port)]) == 2
    out, error = capfd.readouterr()
    assert error.startswith(f"port {port} cannot be opened")
    assert "make app PORT=8502" in error and error.count("\n") == 1
    assert f"http://localhost:{port}" not in out


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", ""])
def test_bad_port_is_one_sentence(port: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert preflight.main(["start", port]) == 2
    assert "is not a number from 1 to 65535" in capfd.readouterr().err


def test_install_report_prints_python_disk_and_download(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    preflight.main(["install", str(tmp_path)])
    out = capfd.readouterr().out
    assert sys.executable in out
    assert "Download  about" in out and "Disk      about" in out and "GB free in" in out


def test_script_is_written_in_old_syntax() -> None:
    """Python 2.7 and 3.x have to parse it before it can tell them that they are too old."""
    source = Path(preflight.__file__).read_text()
    assert source.isascii()
    newer = (
        ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Match, ast.AsyncFunctionDef, ast.Starred
    )  # fmt: skip
    for node in ast.walk(ast.parse(source, feature_version=(3, 7))):
        assert not isinstance(node, newer), f"line {node.lineno}"
        if isinstance(node, ast.FunctionDef):
            names = node.args.args
            assert node.returns is None and all(name.annotation is None for name in names)
            assert not node.args.kwonlyargs and not node.args.posonlyargs


def test_script_needs_nothing_but_the_standard_library(repo_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "workbench/preflight.py", "start", "0"],
        cwd=repo_root, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
