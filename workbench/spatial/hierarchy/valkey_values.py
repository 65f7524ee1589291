"""A page as a Valkey string: how it is made, taken apart, and what it costs the server."""

from typing import Any

import numpy as np

from workbench.spatial.hierarchy.medium import Get, MediumFault, Put
from workbench.spatial.hierarchy.record_header import decode_header, encode_header
from workbench.spatial.hierarchy.valkey_address import fault_reason


def allocated_bytes(num_bytes: int, jemalloc: bool) -> int:
    """What a string of so many bytes takes: jemalloc's size class, or glibc's chunk or pages."""
    needed = num_bytes + 64  # the string's own header and end
    if jemalloc:
        step = 1 << max(4, (needed - 1).bit_length() - 3)  # four classes to a doubling
        return -(-needed // step) * step
    return -(-needed // 4096) * 4096 if needed > 65_536 else needed


def value_of(put: Put) -> bytes:
    """The string that holds a page."""
    return b"".join((encode_header(put.record), memoryview(put.payload)))  # type: ignore[arg-type]


def number(answer: Any) -> int:
    """An answer that is a number; 0 for a refusal."""
    return answer if isinstance(answer, int) else 0


def take(get: Get, begin: int, head: Any, rest: Any) -> str:
    """Copy what came where it belongs; the reason of a miss."""
    for answer in (head, rest):
        if isinstance(answer, Exception):
            return fault_reason(answer)
    if not head:
        return "gone"
    body = memoryview(head)[begin:] if rest is None else memoryview(rest)
    header = head[:begin]
    if header != encode_header(get.record):
        try:
            decode_header(header)
        except MediumFault as fault:
            return fault.reason
        return "changed"  # another page of the same key has taken its place
    if body.nbytes != get.out.nbytes:
        return "truncated"
    get.out[:] = np.frombuffer(body, np.uint8)
    return ""
