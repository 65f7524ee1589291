"""The scripts of `workbench bench quality-peers`: an environment of their own, JSON lines."""

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from workbench.errors import WorkbenchError

Tell = Callable[[str], None]
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests/peers"
ENVIRONMENT = ".venv-caches"
TIMEOUT_S = 3600.0


class PeerRun(msgspec.Struct, frozen=True, kw_only=True):
    """Scores by window: KL in nats and whether the greedy choice is the full cache's."""

    kl: list[list[float]]
    same: list[list[bool]]

    @property
    def mean_kl(self) -> float:
        """Over all windows."""
        values = [value for window in self.kl for value in window]
        return sum(values) / len(values)

    @property
    def top1(self) -> float:
        """Share of tokens whose greedy choice agrees."""
        values = [value for window in self.same for value in window]
        return sum(values) / len(values)


class CacheRun(PeerRun, frozen=True, kw_only=True):
    """A quantized cache; `bits` a number after the context, `bits_later` after the last step."""

    bits: float
    bits_later: float


class PressRun(PeerRun, frozen=True, kw_only=True):
    """A press at one ratio; `kept` tokens a KV head.

    `newest_dropped`: heads in which the press alone would have dropped the newest token, which it
    was kept from.
    """

    kept: int
    newest_dropped: int


class CachesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `quality_caches.py` answers, by cache."""

    versions: dict[str, str]
    caches: dict[str, CacheRun]


class PressesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `quality_presses.py` answers, by press and by ratio as text."""

    versions: dict[str, str]
    presses: dict[str, dict[str, PressRun]]


Answer = TypeVar("Answer", CachesAnswer, PressesAnswer)


def missing_environment(root: Path) -> str:
    """One sentence about how to make what is missing; empty when it is there."""
    if not SCRIPTS.is_dir():
        return "the peers' scripts are not installed: run this in a checkout of the repository"
    if (root / ENVIRONMENT / "bin/python").exists():
        return ""
    return (
        f"the peers' environment {ENVIRONMENT} is missing: make it with `bash tests/peers/setup.sh "
        "caches`"
    )


def ask_peer(
    script: str, request: dict[str, Any], kind: type[Answer], root: Path, log: Path, tell: Tell
) -> Answer:
    """Run a script on one request; WorkbenchError names the script and the log when it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": str(request["threads"])}
    environment.pop("PYTHONPATH", None)
    # quanto looks for ninja beside the interpreter
    environment["PATH"] = f"{root / ENVIRONMENT / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [root / ENVIRONMENT / "bin/python", SCRIPTS / script], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=log.parent,
        )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(request))
        with process.stdout as lines:
            found = read_answer(lines, kind, script, tell)
    except BrokenPipeError:
        found = None
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    if found is None:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1][:300]
        raise WorkbenchError(f"the peer {script} ended without an answer ({last})")
    return found


def read_answer(lines: Any, kind: type[Answer], script: str, tell: Tell) -> Answer | None:
    """Tell each line of progress and return the answer; None where the lines end without one."""
    for line in lines:
        try:
            message = json.loads(line)
            if "answer" in message:
                return msgspec.convert(message["answer"], kind)
            tell(str(message["progress"]))
        except (ValueError, KeyError, TypeError) as error:  # ValidationError is a ValueError
            raise WorkbenchError(
                f"the peer {script} printed a line that is no progress and no answer ({error})"
            ) from error
    return None
