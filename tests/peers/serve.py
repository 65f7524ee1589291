"""How a contender of `workbench bench peers` talks: JSON lines, one batch of prompts a line.

    contender.py '{"model": folder, "dtype": "bf16", "threads": 2, ...}'
    -> {"name": ..., "version": ..., "threads": 2}        once it is ready
    <- {"prompts": [[ids]], "num_new": 64}
    -> {"whole_s", "whole_cpu_s", "decode_s", "decode_tokens", "token_ids": [[ids]]}

Anything that goes wrong is one line `{"error": sentence}`. Standard library alone, because each
contender runs in an environment of its own. What libraries print goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


class Progress:
    """When each request had how many tokens.

    `span`: start and end of the whole run, where a contender knows better than its caller.
    """

    def __init__(self) -> None:
        self.times: list[tuple[float, list[int]]] = []
        self.span: tuple[float, float] | None = None

    def __call__(self, counts: list[int]) -> None:
        """Note the counts as of now."""
        self.times.append((time.perf_counter(), list(counts)))

    def decode_window(self, num_new: int) -> tuple[float, int]:
        """(seconds, tokens) from when every request had a token until the first one had all."""
        started = next((item for item in self.times if min(item[1]) >= 1), None)
        ended = next((item for item in self.times if max(item[1]) >= num_new), None)
        if started is None or ended is None:
            return 0.0, 0
        return ended[0] - started[0], sum(ended[1]) - sum(started[1])


Generate = Callable[[list[list[int]], int, Progress], list[list[int]]]


def answer(generate: Generate, prompts: list[list[int]], num_new: int) -> dict[str, Any]:
    """Run one batch and time it."""
    progress = Progress()
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    token_ids = generate(prompts, num_new, progress)
    whole_s, whole_cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    if progress.span is not None:
        whole_s = progress.span[1] - progress.span[0]
    decode_s, decode_tokens = progress.decode_window(num_new)
    return {
        "whole_s": whole_s, "whole_cpu_s": whole_cpu_s, "decode_s": decode_s,
        "decode_tokens": decode_tokens, "token_ids": token_ids,
    }  # fmt: skip


def serve(load: Callable[[dict[str, Any]], tuple[str, str, Generate]]) -> None:
    """Load with the options of the command line, then answer until standard input closes."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # libraries that print may not spoil the lines

        def say(message: dict[str, Any]) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        try:
            name, version, generate = load(json.loads(sys.argv[1]))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
            raise
        threads = sys.modules["torch"].get_num_threads()
        say({"name": name, "version": version, "threads": threads})
        for line in sys.stdin:
            request = json.loads(line)
            try:
                say(answer(generate, request["prompts"], request["num_new"]))
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}"})
                raise
