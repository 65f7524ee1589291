"""Reads a dropped file of prompts: JSON Lines, one request a line, bounded, each bad line named."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from workbench.errors import RequestError
from workbench.request import RequestSpec, SamplingParams

MAX_FILE_BYTES = 4 << 20
MAX_LINES = 1000
MAX_LINE_CHARS = 200_000
MAX_PROBLEMS = 50
_SAMPLING = tuple(item.name for item in msgspec.structs.fields(SamplingParams))
_REQUEST = ("prompt", "messages", "token_ids", "priority", "label", "cache_control")


def read_prompts(
    source: Iterable[str] | bytes, salt: str = ""
) -> tuple[list[tuple[int, RequestSpec]], list[str]]:
    """Requests with their line numbers, and one sentence for each line that is not one.

    A line is an object with `prompt` or `messages` (or `token_ids`), and maybe max_tokens,
    temperature, top_k, top_p, seed, priority, label, cache_control. `salt` names the tenant whose
    file it is; a line cannot. Raises RequestError for a file that is too large or not text.
    """
    specs: list[tuple[int, RequestSpec]] = []
    problems: list[str] = []
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        if len(specs) >= MAX_LINES:
            problems.append(f"line {number}: only the first {MAX_LINES} requests are used")
            break
        try:
            specs.append((number, _request(line, salt)))
        except RequestError as error:
            problems.append(f"line {number}: {error}")
            if len(problems) >= MAX_PROBLEMS:
                problems.append(f"stopped after {MAX_PROBLEMS} bad lines: check the file's format")
                break
    return specs, problems


def _lines(source: Iterable[str] | bytes) -> Iterable[str]:
    if isinstance(source, bytes):
        if len(source) > MAX_FILE_BYTES:
            raise RequestError(
                f"the file has {len(source) / 2**20:.1f} MiB: at most {MAX_FILE_BYTES >> 20} MiB "
                "are read; split it"
            )
        try:
            return source.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise RequestError(
                f"the file is not UTF-8 text (byte {error.start}): save it as UTF-8 JSON Lines"
            ) from None
    return _bounded(source)


def _bounded(lines: Iterable[str]) -> Iterable[str]:
    size = 0
    for line in lines:
        size += len(line)
        if size > MAX_FILE_BYTES:
            raise RequestError(f"the file is larger than {MAX_FILE_BYTES >> 20} MiB: split it")
        yield line


def _request(line: str, salt: str) -> RequestSpec:
    if len(line) > MAX_LINE_CHARS:
        raise RequestError(f"has {len(line)} characters; at most {MAX_LINE_CHARS} are allowed")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError('is not JSON: write {"prompt": "..."}') from None
    if not isinstance(value, dict):
        raise RequestError(f'is {_kind(value)}, not an object: write {{"prompt": "..."}}')
    if "salt" in value:
        raise RequestError("has a salt: whoever owns the engine names the tenant, not the request")
    unknown = [name for name in value if name not in _SAMPLING and name not in _REQUEST]
    if unknown:
        allowed = ", ".join(_REQUEST + _SAMPLING)
        raise RequestError(f"has an unknown field {unknown[0]!r}: use {allowed}")
    sampling = {name: value.pop(name) for name in _SAMPLING if name in value}
    try:
        return msgspec.convert({**value, "sampling": sampling, "salt": salt}, RequestSpec)
    except msgspec.ValidationError as error:
        # RequestError's own sentence where there is one, else the field and the type it needs.
        raise RequestError(str(error.__cause__ or error).replace("`", "")) from None


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number")
