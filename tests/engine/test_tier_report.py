"""What the engine tells of its tiers: costs, what fetches were worth, journeys, injected faults."""

import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache import row_slices
from workbench.engine.views.tier_report import damage, journey, tiers_report
from workbench.errors import SettingError

TIERS = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 1.0, "tiers.disk_mib": 1.0}


def evicted_and_asked_again(changes: dict[str, object] | None = None) -> Runner:
    """A prompt whose blocks went down, because another needed the room, and came up again."""
    runner = Runner(build(TIERS | (changes or {})))
    for seed in (1, 2, 1):
        runner.add(tokens(96, seed), max_tokens=4)
        runner.until(lambda: not runner.engine.has_work())
    return runner


def test_fetched_tokens_are_those_that_a_request_took() -> None:
    runner = evicted_and_asked_again()
    report = tiers_report(runner.engine)
    dram = report.tiers[0]
    assert (dram.name, dram.medium, dram.enabled) == ("G2", "DRAM", True)
    engine = runner.engine
    moves = [m for key in engine.log.journeys.travelled(100) for m in journey(engine, key)]
    fetched = sum(move.what == "fetched" for move in moves)
    assert 0 < dram.fetched_tokens == 4 * fetched <= 92  # the prompt's last block is computed
    assert dram.fetch_s > 0 and dram.recompute_s > 0
    per_token = dram.recompute_s / dram.fetched_tokens
    assert per_token == pytest.approx(report.recompute_s_per_token, rel=0.9)
    assert report.block_tokens == 4 and report.block_bytes == pages(1) * 2**20
    assert dram.load.samples and dram.load.bytes_per_s > 0
    runner.engine.close()


def test_a_load_by_layers_tells_what_hid_behind_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiers_report(evicted_and_asked_again().engine).overlap is None
    monkeypatch.setattr(row_slices, "LEAST_SLICE_BYTES", 1)
    runner = evicted_and_asked_again({"tiers.dram_mib": 0.0, "tiers.load": "layerwise"})
    overlap = tiers_report(runner.engine).overlap
    assert overlap is not None and overlap.request_ids == ["3"]
    rows = {row: [s for s in overlap.spans if s.row == row] for row in ("G3", "wait", "compute")}
    for spans in rows.values():
        assert [(span.first, span.last) for span in spans] == [(0, 0), (1, 1)]
        assert all(span.start_ms <= span.end_ms for span in spans)
    assert overlap.transfer_ms <= sum(s.end_ms - s.start_ms for s in rows["G3"]) + 1e-9
    ends = [span.end_ms for span in rows["wait"]]
    assert [span.start_ms for span in rows["compute"]] == ends  # a layer begins when it is there
    assert 0.0 <= overlap.hidden <= 1.0
    runner.engine.close()


def test_policy_and_what_was_left_out_are_told() -> None:
    skip = {"tiers.dram_mib": 0.0, "tiers.retrieval": "late", "tiers.retrieval_share": 0.5,
            "retention.sink_tokens": 4, "retention.window_tokens": 8}  # fmt: skip
    runner = evicted_and_asked_again({"tiers.policy": "importance"} | skip)
    told = tiers_report(runner.engine).placement
    assert told is not None and (told.policy, told.retrieval) == ("importance", "late")
    assert told.num_faults == 0 and told.num_left_out > 0 and told.num_late <= told.num_left_out
    runner.engine.close()


def test_a_fetch_that_nobody_used_is_worth_nothing() -> None:
    runner = Runner(build(TIERS))
    for seed in (1, 2):
        runner.add(tokens(96, seed), max_tokens=4)
        runner.until(lambda: not runner.engine.has_work())
    last = runner.add(tokens(96, 1), max_tokens=4)
    runner.until(lambda: runner.engine.fetcher.num_held or runner.engine.fetcher.num_pending)
    runner.engine.abort(last)
    runner.until(lambda: not runner.engine.fetcher.num_pending)
    assert tiers_report(runner.engine).tiers[0].fetched_tokens == 0
    runner.engine.close()


def test_a_blocks_journey_goes_down_and_up_again() -> None:
    runner = evicted_and_asked_again()
    engine = runner.engine
    last_moves = journey(engine, "")
    assert last_moves
    went_up = [m for m in engine.log.journeys.travelled(100)
               if any(x.what == "fetched" for x in journey(engine, m))]  # fmt: skip
    whats = [(move.what, move.tier) for move in journey(engine, went_up[0])]
    assert whats[:3] == [("entered", "G1"), ("stored", "G2"), ("left", "G1")]
    assert ("fetched", "G2") in whats and whats.count(("entered", "G1")) == 2
    steps = [move.step for move in journey(engine, went_up[0])]
    assert steps == sorted(steps)
    assert journey(engine, went_up[0][:10]) == journey(engine, went_up[0])
    assert journey(engine, "zz") == []
    engine.close()


def test_injected_damage_is_counted_and_the_request_goes_on() -> None:
    runner = Runner(build(TIERS | {"tiers.disk_mib": 0.0}))
    runner.add(tokens(96, 1), max_tokens=4)
    runner.until(lambda: not runner.engine.has_work())
    runner.add(tokens(96, 2), max_tokens=4)
    runner.until(lambda: not runner.engine.has_work())
    hit = {damage(runner.engine, "corrupt_dram") for _ in range(40)}
    assert all(len(key) == 64 for key in hit)
    runner.add(tokens(96, 1), max_tokens=4)
    runner.until(lambda: not runner.engine.has_work())
    assert set(runner.status.values()) == {"finished_length"}
    assert tiers_report(runner.engine).tiers[0].faults["corrupt"] >= 1
    runner.engine.close()


def test_damage_says_what_it_cannot_do() -> None:
    engine = build({})
    assert damage(engine, "corrupt_dram") == ""  # there is no tier
    with pytest.raises(SettingError, match="unknown fault 'melt': choose one of corrupt_dram"):
        damage(engine, "melt")
    engine.close()
