"""What every measuring process and its starter say to each other: JSON lines, without torch.

A plan goes in as one line on standard input; then lines come out, the last an error or done.
"""

import msgspec


class ErrorLine(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """Why the job ends early, in one sentence."""

    message: str


class DoneLine(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The last line of a job that ends by itself; `why`: done, cancelled or time."""

    why: str


def encode_line(line: msgspec.Struct) -> bytes:
    """One line with its newline."""
    return msgspec.json.encode(line) + b"\n"
