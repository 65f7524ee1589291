"""Where fetching begins to beat computing: the formula, its edges, and what the pictures show."""

import math
from typing import Any

import msgspec
import pytest

from app.text import load_texts
from app.tiers.cost_figures import (
    bandwidth_figure,
    cost_figure,
    crossover_figure,
    crossover_tokens,
    fetch_seconds,
    needed_bytes_per_s,
    probed,
)
from workbench.tier_views import CostView, SizeCostView, TierReport, TiersReport

MB = 1e6
EMPTY = {str: "", int: 0, float: 0.0, bool: False}


def made(kind: type[Any], **given: Any) -> Any:
    """A view whose fields that are not given are empty."""
    fields = {
        field.name: EMPTY.get(field.type, {} if "dict" in str(field.type) else [])
        for field in msgspec.structs.fields(kind)
        if field.required
    }
    return kind(**fields | given)


def report(bytes_per_s: float = 100 * MB, recompute_s: float = 1e-3, **more: Any) -> TiersReport:
    """One tier of 1 ms latency; a token takes 20,000 bytes, of which 16 are a block."""
    cost = CostView(latency_s=1e-3, bytes_per_s=bytes_per_s, samples=9)
    sizes = [
        SizeCostView(num_bytes=4096, load_s=1e-3, store_s=2e-3, num_tries=3),
        SizeCostView(num_bytes=65536, load_s=0.0, store_s=0.0, num_tries=3),
    ]
    tier = made(TierReport, name="G3", enabled=True, load=cost, store=cost, sizes=sizes, at_once=32)
    return made(
        TiersReport, tiers=[tier], recompute_s_per_token=recompute_s, block_tokens=16,
        block_bytes=320_000, **more,
    )  # fmt: skip


def test_at_the_crossing_both_ways_take_equally_long() -> None:
    told = report(copy_bytes_per_s=1000 * MB)
    tokens = crossover_tokens(told, told.tiers[0], 100 * MB)
    fetch_s = 1e-3 + tokens * 20_000 * (1 / (100 * MB) + 1 / (1000 * MB))
    assert fetch_s == pytest.approx(tokens * 1e-3)


def test_below_the_needed_bandwidth_no_size_pays() -> None:
    told = report()
    assert needed_bytes_per_s(told) == pytest.approx(20 * MB)
    for rate in (1 * MB, 20 * MB):
        assert crossover_tokens(told, told.tiers[0], rate) == math.inf
    assert crossover_tokens(told, told.tiers[0], 21 * MB) < math.inf


def test_where_nothing_was_computed_or_copying_is_too_slow() -> None:
    assert needed_bytes_per_s(report(recompute_s=0.0)) == 0
    slow = report(copy_bytes_per_s=10 * MB)
    assert needed_bytes_per_s(slow) == math.inf
    assert crossover_tokens(slow, slow.tiers[0], 100 * MB) == math.inf


def test_blocks_that_move_together_have_one_latency() -> None:
    told = report()
    one, many, more = (fetch_seconds(told, told.tiers[0], count) for count in (1, 32, 33))
    assert one == pytest.approx(1e-3 + 320_000 / (100 * MB))
    assert many == pytest.approx(1e-3 + 32 * 320_000 / (100 * MB))
    assert more == pytest.approx(2e-3 + 33 * 320_000 / (100 * MB))


def test_pictures_leave_out_what_was_not_measured() -> None:
    texts, told = load_texts(), report()
    assert len(probed(told)) == 1
    up, down = bandwidth_figure(texts, told).data
    assert list(up.x) == [4096] and up.y[0] == pytest.approx(4.096) and down.y[0] < up.y[0]
    curve, mark, block = crossover_figure(texts, told).data
    assert mark.y[0] == crossover_tokens(told, told.tiers[0], 100 * MB)
    assert block.y[0] == told.block_tokens and max(curve.x) > 100 and min(curve.y) > 0
    assert len(cost_figure(texts, told).data) == 2
    nothing = msgspec.structs.replace(told.tiers[0], sizes=[])
    assert probed(msgspec.structs.replace(told, tiers=[nothing])) == []
