"""Reads published request traces as workloads, lengths and times scaled to a small machine.

Mooncake (FAST '25): JSON Lines of `timestamp` (ms), `input_length`, `output_length`, `hash_ids`
(one a block of 512 tokens; equal ids mean equal text). Azure (LLM inference traces, 2023 and 2024):
CSV of TIMESTAMP, ContextTokens, GeneratedTokens. Neither holds text: tokens are drawn from seeded
random numbers, equal where the trace says that they are equal.
"""

import csv
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.engine.process.protocol import Arrival, Workload
from workbench.errors import RequestError
from workbench.request import RequestSpec, SamplingParams

MOONCAKE_BLOCK_TOKENS = 512
_MAX_LINE_CHARS = 1 << 20


@dataclass(frozen=True)
class TraceScale:
    """How a trace is made to fit: lengths times `length`, arrival times times `time`.

    At most `max_requests` are read; prompts have 1 to `max_prompt_tokens` tokens, answers 1 to
    `max_output_tokens`; token ids lie below `vocab_size`.
    """

    length: float = 1 / 32
    time: float = 1.0
    max_requests: int = 200
    max_prompt_tokens: int = 1024
    max_output_tokens: int = 256
    vocab_size: int = 32_000

    def __post_init__(self) -> None:
        for name in ("length", "time", "max_requests", "max_prompt_tokens", "max_output_tokens"):
            if getattr(self, name) <= 0:
                raise RequestError(f"trace scale {name} = {getattr(self, name)} must be above 0")
        if self.vocab_size < 2:
            raise RequestError(f"vocab_size = {self.vocab_size} is out of range: 2 or more")


@dataclass(frozen=True)
class _Row:
    """One request of a trace, unscaled; `blocks` are ids of equal text."""

    at_s: float
    num_input: int
    num_output: int
    blocks: tuple[int, ...]


def read_trace(path: Path, scale: TraceScale | None = None, seed: int = 0) -> Workload:
    """A workload from a Mooncake `.jsonl` or an Azure `.csv` file.

    Raises RequestError naming the file and line when it is neither.
    """
    scale = scale or TraceScale()
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _rows(path, file, scale.max_requests)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"trace {path} cannot be read ({error}): check the path") from None
    if not rows:
        raise RequestError(f"trace {path} holds no requests: give a Mooncake or Azure file")
    rows.sort(key=lambda row: row.at_s)
    start_s = rows[0].at_s
    arrivals = [
        Arrival((row.at_s - start_s) * scale.time, _spec(row, scale, seed, number))
        for number, row in enumerate(rows, start=1)
    ]
    return Workload(name=path.stem, arrivals=arrivals)


def read_references(path: Path) -> list[int]:
    """Block ids of a Mooncake file, all requests one after the other (see `read_requests`)."""
    return [block for blocks in read_requests(path) for block in blocks]


def read_requests(path: Path) -> list[tuple[int, ...]]:
    """Block ids (`hash_ids`) of each request of a Mooncake file, in order of arrival.

    Raises RequestError naming the file when it has none.
    """
    try:
        with path.open(encoding="utf-8") as file:
            rows = _rows(path, file, 1 << 30)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"trace {path} cannot be read ({error}): check the path") from None
    requests = [row.blocks for row in sorted(rows, key=lambda row: row.at_s) if row.blocks]
    if not requests:
        raise RequestError(f"trace {path} names no blocks: give a Mooncake file with hash_ids")
    return requests


def _rows(path: Path, file: Iterable[str], limit: int) -> list[_Row]:
    if path.suffix not in (".jsonl", ".csv"):
        raise RequestError(f"trace {path} is neither .jsonl (Mooncake) nor .csv (Azure)")
    reader = _mooncake(path, file) if path.suffix == ".jsonl" else _azure(path, file)
    rows: list[_Row] = []
    for row in reader:
        rows.append(row)
        if len(rows) == limit:
            break
    return rows


def _mooncake(path: Path, file: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            if len(line) > _MAX_LINE_CHARS:
                raise ValueError("too long")
            value = json.loads(line)
            yield _Row(
                float(value["timestamp"]) / 1e3,
                _count(value["input_length"]),
                _count(value["output_length"]),
                tuple(int(b) for b in value.get("hash_ids", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RequestError(
                f"{path.name}, line {number}: not a Mooncake request (timestamp, input_length, "
                "output_length, hash_ids)"
            ) from None


def _azure(path: Path, file: Iterable[str]) -> Iterator[_Row]:
    for number, row in enumerate(csv.DictReader(file), start=2):
        try:
            moment = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26]).replace(tzinfo=UTC)
            num_input, num_output = _count(row["ContextTokens"]), _count(row["GeneratedTokens"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RequestError(
                f"{path.name}, line {number}: not an Azure request (TIMESTAMP, ContextTokens, "
                "GeneratedTokens)"
            ) from None
        yield _Row(moment.timestamp(), num_input, num_output, ())


def _count(value: Any) -> int:
    count = int(value)
    if count < 0:
        raise ValueError(f"negative length {count}")
    return count


def _spec(row: _Row, scale: TraceScale, seed: int, number: int) -> RequestSpec:
    num_prompt = min(scale.max_prompt_tokens, max(1, round(row.num_input * scale.length)))
    num_output = min(scale.max_output_tokens, max(1, round(row.num_output * scale.length)))
    sampling = SamplingParams(max_tokens=num_output, ignore_eos=True, seed=seed + number)
    tokens = _tokens(row, scale, seed, number, num_prompt)
    return RequestSpec(token_ids=tokens, sampling=sampling, label=f"trace {number}")


def _tokens(row: _Row, scale: TraceScale, seed: int, number: int, count: int) -> list[int]:
    """Equal ids where the trace has equal blocks; the rest is this request's own."""
    per_block = max(1, round(MOONCAKE_BLOCK_TOKENS * scale.length))
    tokens: list[int] = []
    for block in row.blocks:
        tokens += _draw(f"{seed}/block/{block}", per_block, scale.vocab_size)
        if len(tokens) >= count:
            break
    own = _draw(f"{seed}/request/{number}", max(0, count - len(tokens)), scale.vocab_size)
    return (tokens + own)[:count]


def _draw(name: str, count: int, vocab_size: int) -> list[int]:
    # The lowest ids of most vocabularies are special tokens.
    low = min(vocab_size // 8, 1000)
    return random.Random(name).choices(range(low, vocab_size), k=count)
