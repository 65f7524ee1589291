"""Immutable pictures of an engine, and their wire format for viewers.

A frame is one binary message: `KVF1`, the JSON's length (u32, little endian), the JSON of a
`Snapshot` (padded with spaces to a multiple of 8), then the cells. For each tier of
`Snapshot.grid` in order: one u8 plane of `num_cells` for each name in PLANES. Then, from the next
multiple of 4 on, the block tables: i32 cell indices into tier G1, all requests one after the other,
`RequestView.num_pages` each. With `Snapshot.groups` three more i32 arrays follow, those of
`TokenBlocks`.

Area is bytes: tier G1 consists of slabs (`TierGrid.slabs`), a slab of a page class holds so many
cells; a slab with class -1 is unassigned and holds none.
"""

import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from workbench.cache_control import BreakpointView, CacheUsage
from workbench.events import Event
from workbench.request import MissReason
from workbench.views import (
    ApplyReport,
    IntegrityView,
    LedgerLine,
    Number,
    PageClassView,
    ShadowView,
    StepView,
    TierView,
    WeightNote,
)

MAGIC = b"KVF1"
PLANES = ("state", "owner", "refs", "mass", "age")

# The `state` plane: low three bits, then flags.
STATE_FREE, STATE_CACHED, STATE_OWNED = 0, 1, 2
FLAG_SHARED, FLAG_PINNED, FLAG_HASHED, FLAG_EVICTED, FLAG_MOVING = 8, 16, 32, 64, 128
# `owner` plane: the slot 0..254 of a request, given when it first gets blocks and reused after its
# end. NO_OWNER: nobody's, or of one that found every slot taken.
NO_OWNER = 255


class TierGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of one tier's cells; `slabs` are [class index or -1, number of cells] in order.

    `cell_classes`: the same by cell where a tier holds entries of several classes, -1 if one is not
    known; empty if the slabs' classes hold.
    """

    name: str
    num_cells: int
    slab_bytes: int
    slabs: list[list[int]]
    cell_classes: list[list[int]] = []


class GroupsView(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of one token block: `len(rows)` x `num_columns`, group `row * num_columns + column`.

    `rows` names the layers of each row; a column is a KV head where each has pages of its own.
    `counts`: how many token blocks each shown request holds.
    """

    rows: list[str]
    num_columns: int
    num_token_blocks: int
    counts: list[int]


class TextView(msgspec.Struct, frozen=True, kw_only=True):
    """A request's tokens as text pieces from token `start` on.

    `mass[i]` is 0..255 (255 = the largest in this text), `evicted[i]` 0 or 1.
    """

    start: int
    pieces: list[str]
    mass: list[int]
    evicted: list[int]
    num_prompt_tokens: int


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the sequences list shows it."""

    request_id: str
    label: str
    owner: int
    status: str
    priority: int
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int  # prefix hits, first time
    num_output_tokens: int
    num_preemptions: int
    num_pages: int
    num_shared_pages: int
    num_evicted_tokens: int
    kept_mass: float | None  # share of observed attention mass on tokens still stored
    ttft_ms: float | None
    itl_ms: float | None
    needs_blocks: int = 0  # while waiting: what it needs and what is free
    free_blocks: int = 0
    miss: MissReason | None = None
    error: str = ""
    text: TextView | None = None
    usage: CacheUsage | None = None  # of requests that ask for prompt caching
    breakpoints: list[BreakpointView] = []
    # First and last token of each page where evictions left gaps; else page i begins at token
    # i * block_size.
    page_tokens: list[list[int]] = []


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the dashboard shows, at one moment."""

    seq: int
    step: int
    time_s: float  # the engine's clock, pauses taken out
    state: str  # loading | running | idle | paused | saturated | thrashing | dead
    state_detail: str = ""
    progress: float = 1.0  # while loading, 0..1
    speed: float = 1.0  # 1 = as fast as it runs; below 1 = slow motion
    config_version: int = 0
    settings: dict[str, Any] = {}  # path -> value, all of them
    device: str = "cpu"
    stands_in: bool = True  # a CPU stands in for a GPU
    backend: str = "torch"
    model_name: str = ""
    weight_format: str = ""
    weight_bytes: int = 0
    weight_notes: list[WeightNote] = []  # `auto` among them: tokens depend on the schedule
    block_size: int = 16
    owner_labels: dict[str, str] = {}  # owner slot -> request id
    classes: list[PageClassView] = []
    grid: list[TierGrid] = []
    tiers: list[TierView] = []
    requests: list[RequestView] = []
    num_waiting: int = 0
    num_running: int = 0
    numbers: dict[str, Number] = {}
    last_step: StepView | None = None
    ledger: list[LedgerLine] = []
    rss_bytes: int = 0
    groups: GroupsView | None = None  # None: one page a token block
    shadow: ShadowView | None = None
    integrity: IntegrityView | None = None
    hardware: dict[str, Number] = {}  # NVML rates, or n/a with the reason
    events: list[Event] = []  # the newest 60
    sentence: Event | None = None  # the newest event worth a sentence
    last_apply: ApplyReport | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Snapshot)


@dataclass(frozen=True)
class TokenBlocks:
    """Which pages of G1 are one token block, where there is more than one group.

    `parts`: i32 [cells of G1], token block * groups + group, -1 for a free page. `numbers`: i32
    [num_token_blocks], which token block of its request it is, -1 where no request tells.
    `tables`: i32, the token blocks of all shown requests in order, `GroupsView.counts` each.
    """

    parts: np.ndarray
    numbers: np.ndarray
    tables: np.ndarray


def encode_frame(
    snapshot: Snapshot,
    cells: list[dict[str, np.ndarray]],
    tables: np.ndarray,
    blocks: TokenBlocks | None = None,
) -> bytes:
    """One frame. `cells[i][plane]`: u8 [grid[i].num_cells]; `tables`: i32, concatenated.

    `blocks` belongs to a snapshot with `groups`.
    """
    text = _encoder.encode(snapshot)
    text += b" " * (-(len(text) + 8) % 8)
    parts = [MAGIC, struct.pack("<I", len(text)), text]
    parts += [tier[plane].tobytes() for tier in cells for plane in PLANES]
    size = sum(len(part) for part in parts)
    arrays = [tables] if blocks is None else [tables, blocks.parts, blocks.numbers, blocks.tables]
    parts += [b"\0" * (-size % 4)] + [a.astype("<i4", copy=False).tobytes() for a in arrays]
    return b"".join(parts)


def decode_frame(frame: bytes) -> tuple[Snapshot, list[dict[str, np.ndarray]], np.ndarray]:
    """Inverse of `encode_frame` but for token blocks; raises ValueError for anything else."""
    snapshot, cells, arrays = _decode(frame)
    return snapshot, cells, arrays[: _num_table_entries(snapshot)] if snapshot.groups else arrays


def decode_token_blocks(frame: bytes) -> TokenBlocks | None:
    """The token blocks of a frame; None where each is one page."""
    snapshot, _, arrays = _decode(frame)
    if snapshot.groups is None:
        return None
    first = _num_table_entries(snapshot)
    second = first + snapshot.grid[0].num_cells
    third = second + snapshot.groups.num_token_blocks
    return TokenBlocks(arrays[first:second], arrays[second:third], arrays[third:])


def _num_table_entries(snapshot: Snapshot) -> int:
    return sum(request.num_pages for request in snapshot.requests)


def _decode(frame: bytes) -> tuple[Snapshot, list[dict[str, np.ndarray]], np.ndarray]:
    """Snapshot, planes, and all that follows them as one i32 array."""
    if frame[:4] != MAGIC:
        raise ValueError("not a frame: the first bytes must be KVF1")
    (length,) = struct.unpack_from("<I", frame, 4)
    snapshot = _decoder.decode(frame[8 : 8 + length])
    at = 8 + length
    cells = []
    for tier in snapshot.grid:
        planes = {}
        for plane in PLANES:
            planes[plane] = np.frombuffer(frame, np.uint8, tier.num_cells, at)
            at += tier.num_cells
        cells.append(planes)
    at += -at % 4
    return snapshot, cells, np.frombuffer(frame, "<i4", offset=at)
