"""Traffic, occupancy, text with attention and percentiles that a frame tells, with right values."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.panels.files import events_parquet
from workbench.clock import ManualClock
from workbench.engine.metrics import Window
from workbench.snapshot import Snapshot, decode_frame
from workbench.views import TierView

from .harness import Runner, build, pages, tokens

TIERS = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 1.0}


def look(runner: Runner) -> Snapshot:
    return decode_frame(runner.engine.frame(1, state="running"))[0]


def rates(tier: TierView) -> tuple[float, float]:
    return tier.in_bytes_per_s, tier.out_bytes_per_s


def test_traffic_is_the_bytes_of_the_last_two_seconds_both_ways() -> None:
    clock = ManualClock()
    runner = Runner(build(TIERS, clock=clock))
    first = tokens(80, 0)
    runner.one(first, 4)
    assert [rates(tier) for tier in look(runner).tiers] == [(0.0, 0.0)] * 3
    runner.one(tokens(80, 1), 4)
    clock.advance(1.0)
    hbm, dram, disk = look(runner).tiers
    assert dram.in_bytes_total > 0 and rates(dram) == (dram.in_bytes_total, 0.0)
    assert rates(hbm) == (0.0, hbm.out_bytes_total) and hbm.out_bytes_total == dram.in_bytes_total
    assert rates(disk) == (0.0, 0.0)
    clock.advance(3.0)
    assert rates(look(runner).tiers[1]) == (0.0, 0.0), "nothing moved in the last two seconds"
    before = dram.in_bytes_total
    runner.one(first, 4)
    clock.advance(0.5)
    hbm, dram, _ = look(runner).tiers
    assert dram.out_bytes_total > 0 and dram.out_bytes_per_s == dram.out_bytes_total / 0.5
    assert dram.in_bytes_per_s == (dram.in_bytes_total - before) / 0.5
    assert hbm.in_bytes_per_s == dram.out_bytes_per_s


def test_used_cached_and_free_of_each_tier_are_its_bytes() -> None:
    runner = Runner(build(TIERS | {"scheduling.preemption": "swap"}))
    for seed in range(2):
        runner.one(tokens(80, seed), 4)
    for seed in range(2, 5):
        runner.add(tokens(40, seed), 40)
    stats = runner.engine.hierarchy.stats
    runner.until(lambda: stats().tiers[0].num_private)
    for tier in look(runner).tiers[:2]:
        assert tier.used_bytes + tier.cached_bytes + tier.free_bytes == tier.capacity_bytes
        assert tier.used_bytes > 0 and tier.cached_bytes > 0, tier.name
    assert look(runner).tiers[2].capacity_bytes == 0


def test_each_running_request_has_its_text_with_mass_and_evictions() -> None:
    policy = {"retention.policy": "attention-mass", "retention.budget_tokens": 24,
              "retention.window_tokens": 8, "retention.sink_tokens": 4}  # fmt: skip
    runner = Runner(build(policy))
    for seed in range(5):
        runner.add(tokens(60, seed), 30)
    runner.until(lambda: len(runner.engine.scheduler.running) == 5 and all(
        r.num_output_tokens >= 4 for r in runner.engine.scheduler.running))  # fmt: skip
    views = look(runner).requests
    assert len(views) == 5
    for view in views:
        text, blocks = view.text, runner.engine.stack.manager.requests[view.request_id]
        assert text is not None and text.num_prompt_tokens == 60
        whole = runner.engine.streams[view.request_id].pieces
        assert text.pieces == whole[text.start :] and len(text.mass) == len(text.pieces)
        gone = np.ones(view.num_tokens, int)
        gone[blocks.positions(0)] = 0
        computed = view.num_computed_tokens
        assert text.evicted[: computed - text.start] == gone[text.start : computed].tolist()
        assert sum(text.evicted) == view.num_evicted_tokens > 0
        assert max(text.mass) == 255 and min(text.mass) >= 0 and len(set(text.mass)) > 4
        assert view.kept_mass is not None and 0 < view.kept_mass < 1


@pytest.mark.parametrize(("count", "value"), [(41, None), (99, None), (100, 98.01)])
def test_p99_needs_a_hundred_samples(count: int, value: float | None) -> None:
    window = Window(ManualClock())
    for sample in range(count):
        window.add(float(sample))
    number = window.percentile(99, "ms")
    assert number.value == pytest.approx(value) if value else number.value is None
    assert number.why == ("" if value else f"{count} of 100 samples")
    assert window.percentile(50, "ms").value == (count - 1) / 2


def test_events_read_back_from_parquet_are_those_of_the_engine() -> None:
    runner = Runner(build(TIERS))
    for seed in range(2):
        runner.one(tokens(80, seed), 4)
    events = runner.engine.events_since(0)
    table = pq.read_table(io.BytesIO(events_parquet(events)))
    assert table.column_names == ["seq", "step", "time_s", "kind", "request_id", "data"]
    rows = table.to_pylist()
    assert len(rows) == len(events) > 10 and {"admit", "evict"} <= {row["kind"] for row in rows}
    for row, event in zip(rows, events, strict=True):
        data = json.loads(row.pop("data"))
        assert data == json.loads(json.dumps(event.data, default=str))
        assert row == {name: getattr(event, name) for name in row}
