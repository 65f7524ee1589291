"""What the parent and its ranks say to each other: msgpack over a pipe, one answer a question."""

import msgspec

from workbench.spatial.devices.placement import Placement
from workbench.spatial.devices.report import RankReport
from workbench.spatial.devices.sources import ModelSource


class Setup(msgspec.Struct, tag="setup", kw_only=True):
    """The first message: what this rank is and holds."""

    source: ModelSource
    placement: Placement
    rank: int
    backend: str
    device: str
    store_file: str
    timeout_s: float
    kv_format: str
    block_size: int
    num_pages: int
    delay_s: float


class Piece(msgspec.Struct, array_like=True):
    """The next tokens of one sequence, from position `start` on."""

    sequence: int
    start: int
    tokens: list[int]


class Step(msgspec.Struct, tag="step", kw_only=True):
    """One step of every rank. Rows are asked of every token, or of the last of each piece."""

    pieces: list[Piece]
    every_row: bool
    want_logits: bool
    micro_batches: int


class Free(msgspec.Struct, tag="free"):
    """These sequences are over."""

    sequences: list[int]


class Tell(msgspec.Struct, tag="tell"):
    """Report, and count from zero again where `reset`."""

    reset: bool


Question = Setup | Step | Free | Tell


class Done(msgspec.Struct, tag="done"):
    """Nothing to say but that it is done."""


class Answer(msgspec.Struct, tag="answer"):
    """The best token of some rows, among this rank's share of the vocabulary.

    rows: numbers among all rows of the step. logits: fp32 [len(rows), own vocabulary], or empty.
    """

    rows: list[int]
    tokens: list[int]
    values: list[float]
    logits: bytes


class Told(msgspec.Struct, tag="told"):
    """The answer to `Tell`."""

    report: RankReport


class Failed(msgspec.Struct, tag="failed"):
    """A rank's last words; `by_link`: a collective failed, which another rank may have caused."""

    text: str
    by_link: bool


Reply = Done | Answer | Told | Failed
