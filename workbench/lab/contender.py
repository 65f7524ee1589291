"""One contender of `workbench bench peers`: a process that answers JSON lines (tests/peers)."""

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec

from workbench.engine.process.environment import engine_environment
from workbench.errors import WorkbenchError

READY_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 600.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one batch; `decode_tokens` came within `decode_s`, all requests decoding."""

    whole_s: float
    whole_cpu_s: float
    decode_s: float
    decode_tokens: int
    token_ids: list[list[int]]

    @property
    def whole_rate(self) -> float:
        """New tokens per second, prompt included."""
        return sum(map(len, self.token_ids)) / self.whole_s

    @property
    def decode_rate(self) -> float:
        """New tokens per second while all requests were decoding; 0 when there was no such time."""
        return self.decode_tokens / self.decode_s if self.decode_s > 0 else 0.0


class Contender:
    """A loaded model in a process of its own; idle between `run`s.

    `ours` starts it as the engine's own process is started (huge pages).
    Raises WorkbenchError with one sentence when the process cannot load, ends, or takes too long.
    """

    def __init__(
        self,
        kind: str,
        python: Path,
        script: Path,
        options: dict[str, Any],
        log: Path,
        *,
        ours: bool = False,
    ) -> None:
        self.kind = kind
        self.options = options
        self._log = log
        # libraries of other environments may look around in the current folder
        start = engine_environment() if ours else os.environ
        environment = start | {"OMP_NUM_THREADS": str(options["threads"])}
        environment.pop("PYTHONPATH", None)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, script, json.dumps(options)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=log.parent,
            )  # fmt: skip
        try:
            ready = self._read(READY_TIMEOUT_S)
        except WorkbenchError:
            self.close()
            raise
        self.version = f"{ready['name']} {ready['version']}"
        self.threads = int(ready["threads"])

    def run(self, prompts: list[list[int]], num_new: int) -> Answer:
        """Generate `num_new` tokens for each prompt; all counts are checked."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "num_new": num_new}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkbenchError(f"{self.kind} has ended: see {self._log}") from None
        answer = msgspec.convert(self._read(ANSWER_TIMEOUT_S), Answer)
        counts = {len(ids) for ids in answer.token_ids}
        if counts != {num_new} or len(answer.token_ids) != len(prompts):
            raise WorkbenchError(
                f"{self.kind} gave {sorted(counts)} tokens where {num_new} were asked for: its "
                "times cannot be compared"
            )
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        message: dict[str, Any] = json.loads(line) if line else {}
        if "error" in message or not message:
            why = " ".join(str(message.get("error", "it ended without an answer")).split())[:300]
            raise WorkbenchError(f"{self.kind} failed ({why}): see {self._log}")
        return message
