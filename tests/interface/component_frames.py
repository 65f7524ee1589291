"""Frames for tests of the canvas component, made with the engine's own `encode_frame`.

The cells follow a small fixed plan, so that a test can say which cell must look how.
"""

from dataclasses import dataclass

import numpy as np

from workbench.events import Event
from workbench.request import MissReason
from workbench.snapshot import (
    FLAG_HASHED,
    FLAG_PINNED,
    FLAG_SHARED,
    NO_OWNER,
    STATE_CACHED,
    STATE_OWNED,
    ApplyReport,
    IntegrityView,
    LedgerLine,
    Number,
    PageClassView,
    RequestView,
    ShadowView,
    Snapshot,
    StepView,
    TextView,
    TierGrid,
    TierView,
    encode_frame,
)

WORDS = (
    "The quick keeper of the cache counts every block twice before lunch and finds that "
    "nothing is lost when two readers share the same page of the same long story . "
).split(" ")


@dataclass(frozen=True)
class Plan:
    """What a frame shows: slabs of G1, cells a slab, requests, and which tick it is."""

    num_slabs: int = 32
    cells_per_slab: int = 5
    num_requests: int = 6
    shared_pages: int = 12
    tick: int = 0
    recoded: int = 0  # the first so many slabs hold int8 pages, twice as many cells
    tiers: int = 1
    state: str = "running"
    empty: bool = False
    detail: str = ""  # of the state

    @property
    def slabs(self) -> list[list[int]]:
        """[class, cells] of each slab; the last one is unassigned if there are several."""
        out = [
            [1, 2 * self.cells_per_slab] if i < self.recoded else [0, self.cells_per_slab]
            for i in range(self.num_slabs)
        ]
        if self.num_slabs > 2:
            out[-1] = [-1, 0]
        return out

    @property
    def num_cells(self) -> int:
        """Cells of tier G1."""
        return sum(count for _, count in self.slabs)


def tables_of(plan: Plan) -> list[np.ndarray]:
    """One i32 table a request: shared pages first, then pages of its own."""
    if plan.empty:
        return []
    shared = np.arange(plan.shared_pages)
    room = (plan.num_cells * 6 // 10 - plan.shared_pages) // plan.num_requests
    tables = []
    for index in range(plan.num_requests):
        first = plan.shared_pages + index * room
        length = max(1, min(room, 4 + (plan.tick // 4 + 3 * index) % max(2, room)))
        tables.append(np.concatenate([shared, np.arange(first, first + length)]).astype(np.int32))
    return tables


def cells_of(plan: Plan, tables: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The five planes of tier G1."""
    count = plan.num_cells
    planes = {name: np.zeros(count, np.uint8) for name in ("state", "owner", "refs", "mass", "age")}
    planes["owner"][:] = NO_OWNER
    cached = slice(count * 6 // 10, count * 6 // 10 + count // 5)
    planes["state"][cached] = STATE_CACHED | FLAG_HASHED
    planes["age"][cached] = np.arange(count // 5) % 200
    for slot, table in reversed(list(enumerate(tables))):
        planes["state"][table] = STATE_OWNED | FLAG_HASHED
        planes["owner"][table] = slot
        planes["mass"][table] = (np.arange(len(table)) * 37 + plan.tick) % 256
        np.add.at(planes["refs"], table, 1)
    shared = planes["refs"] > 1
    planes["state"][shared] |= FLAG_SHARED
    if tables:
        planes["state"][tables[0][0]] |= FLAG_PINNED
    return planes


BELOW = ("G2", "G3", "G3.5", "G4")


def snapshot_of(plan: Plan, tables: list[np.ndarray]) -> Snapshot:
    """The JSON half of the frame."""
    page, slab = 368_640, 2 * 1024 * 1024
    used = sum(len(t) for t in tables) * page
    names = ("G1", *BELOW[: max(2, plan.tiers - 1)])  # G3.5 and G4 are told of while they are on
    grid = [TierGrid(name="G1", num_cells=plan.num_cells, slab_bytes=slab, slabs=plan.slabs)]
    for name in BELOW[: plan.tiers - 1]:
        grid.append(TierGrid(name=name, num_cells=96, slab_bytes=0, slabs=[]))
    return Snapshot(
        seq=plan.tick,
        step=plan.tick * 3,
        time_s=plan.tick / 10,
        state=plan.state,
        state_detail=plan.detail,
        model_name="SmolLM2-135M",
        weight_format="bf16",
        weight_bytes=269_000_000,
        classes=[_page_class("bf16", page, 16.0), _page_class("int8", 194_400, 8.4)],
        grid=grid,
        tiers=[_tier(name, i < plan.tiers, used) for i, name in enumerate(names)],
        requests=_requests(plan, tables),
        num_running=len(tables),
        num_waiting=1 if tables else 0,
        numbers=_numbers(plan),
        last_step=_step(plan),
        rss_bytes=812_000_000,
        ledger=[
            LedgerLine(name="weights", num_bytes=269_000_000),
            LedgerLine(name="kv:bf16", num_bytes=67_108_864),
        ],
        shadow=_shadow(),
        integrity=IntegrityView(ok=True, step=plan.tick * 3),
        events=_events(plan) if tables else [],
        sentence=_events(plan)[-1] if tables else None,
        last_apply=ApplyReport(version=2, changes={"cache.k_format": "int8"}, previous={}, kinds={})
        if plan.tick > 100
        else None,
    )


def _page_class(label: str, page_bytes: int, bits: float) -> PageClassView:
    return PageClassView(
        label=label,
        k_format=label,
        v_format=label,
        page_bytes=page_bytes,
        group="model",
        bits_per_element=bits,
    )


def _shadow() -> ShadowView:
    return ShadowView(
        request_id="r1",
        num_scored_tokens=40,
        num_positions=57,
        kl_mean=0.0123,
        kl_last=0.0101,
        agreement=0.975,
        first_differing_token=17,
        differing_text="lunch",
    )


def frame_of(plan: Plan) -> bytes:
    """One binary frame of a plan."""
    tables = tables_of(plan)
    cells = [cells_of(plan, tables)]
    for index in range(plan.tiers - 1):
        state = np.where(np.arange(96) < 40 * max(2 - index, 1), STATE_CACHED, 0).astype(np.uint8)
        blank = np.zeros(96, np.uint8)
        cells.append(dict(state=state, owner=blank + NO_OWNER, refs=blank, mass=blank, age=blank))
    joined = np.concatenate(tables) if tables else np.zeros(0, np.int32)
    return encode_frame(snapshot_of(plan, tables), cells, joined)


def _tier(name: str, enabled: bool, used: int) -> TierView:
    medium = {"G1": "HBM (CPU memory stands in)", "G2": "DRAM", "G3": "disk",
              "G3.5": "shared store", "G4": "objects"}[name]  # fmt: skip
    return TierView(
        name=name,
        medium=medium,
        enabled=enabled,
        capacity_bytes=67_108_864 if enabled else 0,
        used_bytes=min(used, 40_000_000) if enabled else 0,
        cached_bytes=12_000_000 * enabled,
        free_bytes=15_000_000 * enabled,
        pinned_bytes=368_640 if name == "G1" else 0,
        in_bytes_per_s=3.2e6 * (enabled and name != "G1"),
        out_bytes_per_s=0.0,
        in_bytes_total=12_000_000,
        out_bytes_total=4_000_000,
        num_entries=10,
        hits=12,
        misses=3,
        faults=0,
        provenance="measured",
    )


def _requests(plan: Plan, tables: list[np.ndarray]) -> list[RequestView]:
    running = [_running(plan, slot, len(table)) for slot, table in enumerate(tables)]
    return [*running, _waiting()] if tables else []


def _running(plan: Plan, slot: int, num_pages: int) -> RequestView:
    tokens = 16 * num_pages - 3
    return RequestView(
        request_id=f"r{slot + 1}",
        label=str(slot + 1),
        owner=slot,
        status="running",
        priority=0,
        num_prompt_tokens=100,
        num_tokens=tokens,
        num_computed_tokens=tokens - 1,
        num_cached_tokens=192 if slot else 0,
        num_output_tokens=tokens - 100,
        num_preemptions=slot % 2,
        num_pages=num_pages,
        num_shared_pages=plan.shared_pages,
        num_evicted_tokens=14,
        kept_mass=0.972,
        ttft_ms=84.0,
        itl_ms=31.0,
        miss=MissReason(kind="differs", token_index=193) if slot else MissReason(kind="first"),
        text=_text(min(tokens, 180)) if slot < 2 else None,
    )


def _text(num_tokens: int) -> TextView:
    return TextView(
        start=0,
        pieces=[" " + WORDS[i % len(WORDS)] for i in range(num_tokens)],
        mass=[(i * i * 31) % 256 for i in range(num_tokens)],
        evicted=[1 if 30 <= i < 44 else 0 for i in range(num_tokens)],
        num_prompt_tokens=100,
    )


def _waiting() -> RequestView:
    return RequestView(
        request_id="w",
        label="7",
        owner=NO_OWNER,
        status="waiting",
        priority=0,
        num_prompt_tokens=220,
        num_tokens=220,
        num_computed_tokens=0,
        num_cached_tokens=0,
        num_output_tokens=0,
        num_preemptions=0,
        num_pages=0,
        num_shared_pages=0,
        num_evicted_tokens=0,
        kept_mass=None,
        ttft_ms=None,
        itl_ms=None,
        needs_blocks=14,
        free_blocks=9,
    )


def _numbers(plan: Plan) -> dict[str, Number]:
    tick = plan.tick
    changed = tick > 100  # the figures of a window still hold what came before it
    wave = float(np.sin(tick / 7) * 6)
    return {
        "hit_rate": Number(
            value=0.61 + wave / 200,
            unit="share",
            samples=41,
            after=0.62 - wave / 200 if changed else None,
            after_samples=7,
        ),
        "ttft_p50": Number(
            value=84.0 + wave,
            unit="ms",
            percentile="p50",
            samples=41,
            window_s=30.0,
            after=46.0 + wave if changed else None,
            after_samples=7,
        ),
        "itl_p50": Number(
            value=31.0 + wave / 3, unit="ms", percentile="p50", samples=812, window_s=30.0
        ),
        "tokens_per_s": Number(value=152.0 + wave * 3, unit="tok/s", window_s=5.0),
        "num_preemptions": Number(value=float(tick // 50), unit=""),
        "recompute_tax": Number(value=None, unit="share", why="no token was computed twice"),
        "itl_p99": Number(value=None, unit="ms", percentile="p99", why="41 of 100 samples"),
        "step_ms": Number(value=41.25, unit="ms", samples=100),
        "slab_waste": Number(value=0.11, unit="share"),
    }


def _step(plan: Plan) -> StepView:
    return StepView(
        step=plan.tick * 3,
        num_prefill_tokens=128 if plan.tick % 3 == 0 else 0,
        num_decode_tokens=6,
        num_requests=6,
        wall_ms=41.2,
        cpu_ms=60.5,
        attention_ms=9.3,
        linears_ms=24.1,
        gather_ms=3.2,
        dequant_ms=0.0,
        scheduler_ms=0.9,
        other_ms=3.7,
    )


def _events(plan: Plan) -> list[Event]:
    data = [
        ("admit", "r4", {"num_tokens": 231, "num_cached": 192}),
        ("evict", "", {"num_blocks": 13, "to_tier": "G2", "for_request_id": "r5"}),
        ("preempt", "r6", {"reason": "no free block", "num_blocks": 9, "how": "recompute"}),
        ("store", "", {"num_blocks": 13, "tier": "G2", "num_bytes": 4_792_320}),
        ("share", "r4", {"other_request_id": "r1", "num_blocks": 12, "num_tokens": 192}),
    ]
    first = plan.tick // 10
    return [
        Event(
            seq=first + i,
            step=(first + i) * 3,
            time_s=plan.tick / 10,
            kind=data[(first + i) % 5][0],
            request_id=data[(first + i) % 5][1],
            data=data[(first + i) % 5][2],
        )
        for i in range(20)
    ]
