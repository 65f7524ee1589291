"""Pages of little attention come late or never: holes where they belong, and nothing indexed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.harness import Runner, assert_idle, build, pages, tokens
from workbench.cache.eviction import evict_pages
from workbench.cache.placement import PageFacts
from workbench.cache.request_blocks import PrefixHit
from workbench.engine.engine import Engine
from workbench.errors import SettingError
from workbench.request import Request

SIZE = 4  # tokens of a page
PROMPT = tokens(80, 1)  # twenty pages
LONGER = PROMPT + tokens(9, 2)
BELOW = {"cache.hbm_budget_mib": pages(40), "tiers.disk_mib": 1.0, "retention.sink_tokens": 4,
         "retention.window_tokens": 16, "tiers.retrieval_share": 0.5}  # fmt: skip


def cold(how: str, **changes: Any) -> Runner:
    """An engine that served PROMPT, whose pages lie on disk alone, each with its mass."""
    runner = Runner(build(BELOW | {"tiers.retrieval": how} | changes))
    runner.one(PROMPT, 4)
    push_down(runner.engine)
    return runner


def push_down(engine: Engine) -> None:
    engine.stack.pool.drop_idle_rows()
    assert engine.hierarchy.wait_io()


def table(runner: Runner, request_id: str, group: int = 0) -> list[int]:
    """The text's page numbers of a request's full pages, in order."""
    blocks = runner.engine.stack.manager.requests[request_id]
    starts = blocks.positions(group)[::SIZE]
    return [int(start) // SIZE for start in starts[: int(blocks.stored_len[group]) // SIZE]]


def logits_of(runner: Runner, prompt: list[int], max_tokens: int = 6) -> list[np.ndarray]:
    rows: list[np.ndarray] = []

    def tap(request: Request, positions: np.ndarray, logits: Tensor) -> None:
        rows.extend(logits.float().numpy().copy())

    runner.engine.tap = tap
    runner.one(prompt, max_tokens, logits_from=len(PROMPT))
    runner.engine.tap = None
    return rows


def begun(runner: Runner, **more: Any) -> str:
    """A request over LONGER that has just begun to run."""
    request_id = runner.add(LONGER, 12, **more)
    runner.until(lambda: request_id in runner.engine.stack.manager.requests)
    return request_id


def test_all_is_the_default_and_reads_everything() -> None:
    assert build().config.tiers.retrieval == "all"
    runner = cold("all")
    request_id = begun(runner)
    assert table(runner, request_id)[:19] == list(range(19))
    assert runner.engine.fetch_counters.num_left_out_pages == 0
    assert runner.engine.stack.manager.requests[request_id].hashing
    runner.engine.close()


def test_skipped_pages_are_holes_in_the_middle_and_nothing_is_indexed() -> None:
    runner = cold("skip")
    engine = runner.engine
    stored = {entry.key: entry.facts.mass for entry in disk(engine).all_entries()}
    request_id = begun(runner)
    found = table(runner, request_id)
    holes = sorted(set(range(found[-1] + 1)) - set(found))
    assert len(holes) == engine.fetch_counters.num_left_out_pages > 2
    assert 0 not in holes, "sinks are always read"
    assert all((page + 1) * SIZE <= len(LONGER) - 16 for page in holes), "and so is the window"
    keys = engine.stack.manager.keys.row_keys(engine.requests[request_id], "fp32@model")
    lost = [stored[keys[page]] for page in holes]
    kept = [stored[keys[page]] for page in found[1:] if page < 18 and page not in holes]
    assert sum(lost) <= 0.5 and max(lost) <= min(kept), "the least of what may go"
    blocks = engine.stack.manager.requests[request_id]
    assert not blocks.hashing and blocks.lineage == "part0.5<fp32@model"
    runner.step(6)
    assert len(engine.stack.pool.index) == 0, "no row behind a hole, nor in front of one"
    request = engine.requests[request_id]
    assert request.num_cached_tokens == 80 and request.num_recomputed_tokens == 0
    evicted = engine.retainer.observers[request_id].evicted[0]
    assert [page for page in range(20) if evicted[page * SIZE]] == holes
    runner.drain()
    assert tier_loads(engine) == 20 - len(holes), "what is skipped is never read"
    engine.close()


def disk(engine: Engine) -> Any:
    return engine.hierarchy.mover.ladder.tiers[0].table


def tier_loads(engine: Engine) -> int:
    return sum(tier.num_loads for tier in engine.hierarchy.stats().tiers)


def test_a_start_with_holes_computes_what_evicted_pages_compute() -> None:
    """The same pages taken out of the table by retention's own means, in HBM: equal bit for bit."""
    runner = cold("skip")
    request_id = begun(runner)
    found = table(runner, request_id)
    holes = sorted(set(range(20)) - set(found))
    runner.drain()
    again = cold("skip")
    ours = logits_of(again, LONGER)
    assert again.engine.fetch_counters.num_left_out_pages == len(holes)
    plain = Runner(build(BELOW | {"tiers.disk_mib": 0.0}))
    plain.one(PROMPT, 4)
    engine, admitted = plain.engine, plain.engine.scheduler.on_admit

    def evict(request: Request, hit: PrefixHit, num_loaded: int) -> None:
        admitted(request, hit, num_loaded)
        evict_pages(engine.stack.manager, request, 0, holes)

    engine.scheduler.on_admit = evict
    theirs = logits_of(plain, LONGER)
    assert len(ours) == len(theirs) > 9
    assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))
    engine.scheduler.on_admit = admitted
    full = logits_of(cold("all"), LONGER)
    assert not np.array_equal(ours[-1], full[-1]), "and it is an approximation"


def test_late_pages_are_written_where_they_belong() -> None:
    runner = cold("late")
    engine = runner.engine
    request_id = begun(runner)
    late = engine.fetch_counters.num_left_out_pages
    assert late > 2 and len(table(runner, request_id)) < 22
    for _ in range(5):
        engine.hierarchy.wait_io()
        runner.step()
    assert table(runner, request_id) == list(range(len(table(runner, request_id))))
    assert engine.fetch_counters.num_late_pages == late and engine.fetcher.retrieval.num_late == 0
    blocks = engine.stack.manager.requests[request_id]
    request = engine.requests[request_id]
    assert blocks.positions(0).tolist() == list(range(request.num_computed_tokens))
    assert not blocks.hashing, "what was computed without them is still an approximation"
    assert engine.retainer.observers[request_id].num_evicted == 0
    assert bytes_of(runner, request_id) == bytes_of_hits()
    moves = [event for event in engine.events_since(0) if event.kind == "load"]
    assert sum(event.data["num_blocks"] for event in moves) == 20, "late ones are told of too"
    runner.drain()
    engine.close()


def bytes_of(runner: Runner, request_id: str) -> list[bytes]:
    stack = runner.engine.stack
    blocks = stack.manager.requests[request_id]
    return [stack.store.read_row(stack.manager.parts(blocks.row_at(page))).tobytes()
            for page in range(19)]  # fmt: skip


def bytes_of_hits() -> list[bytes]:
    runner = cold("all")
    found = bytes_of(runner, begun(runner))
    runner.drain()
    runner.engine.close()
    return found


def test_late_pages_come_though_the_first_ones_filled_staging() -> None:
    runner = cold("late")
    engine = runner.engine
    hint = engine.hierarchy.page_bytes_hint
    engine.hierarchy.mover.staging.capacity_bytes = 18 * hint  # about what it begins with
    request_id = begun(runner)
    for _ in range(5):
        engine.hierarchy.wait_io()
        runner.step()
    assert engine.fetch_counters.num_late_pages == engine.fetch_counters.num_left_out_pages > 2
    assert table(runner, request_id) == list(range(len(table(runner, request_id))))
    runner.drain()
    engine.close()


def test_unknown_mass_and_what_lies_in_dram_is_always_read() -> None:
    runner = cold("skip")
    for entry in disk(runner.engine).all_entries():
        entry.facts.mass = None
    assert table(runner, begun(runner))[:19] == list(range(19))
    runner.engine.close()
    runner = cold("skip", **{"tiers.dram_mib": 1.0})
    assert table(runner, begun(runner))[:19] == list(range(19))
    assert runner.engine.fetch_counters.num_left_out_pages == 0
    runner.engine.close()


@pytest.mark.parametrize(("share", "count"), [(1.0, 0), (0.9, 2), (0.69, 6), (0.0, 8)])
def test_what_is_left_out_has_at_most_the_rest_of_the_mass(share: float, count: int) -> None:
    """Ten pages of 5 %: the first is a sink, the last ends the run."""
    runner = Runner(build(BELOW | {"tiers.retrieval": "skip", "tiers.retrieval_share": share}))
    engine = runner.engine
    request = engine.requests[runner.add(tokens(64, 5), 4)]
    keys = engine.stack.manager.keys.row_keys(request, "fp32@model")[:10]
    for key in keys:
        page = np.zeros(engine.hierarchy.page_bytes_hint, np.uint8)
        engine.hierarchy.store(key, page, 1, None, PageFacts(SIZE, 0, 0.05))
    engine.hierarchy.wait_io()
    chosen = engine.fetcher.retrieval.choose(request, keys, 0, "fp32@model")
    assert len(chosen) == 10 - count and chosen[0] == keys[0] and chosen[-1] == keys[-1]
    engine.close()


def test_rows_in_hbm_come_first_and_are_shared() -> None:
    runner = cold("skip")
    engine = runner.engine
    runner.one(PROMPT[:24], 2)  # its five or six pages are in HBM again, as rows
    resident = len(engine.stack.pool.index)
    assert resident == 0, "this one left pages out too"
    engine.apply({"tiers.retrieval": "all"})
    runner.one(PROMPT[:24], 2)
    resident = len(engine.stack.pool.index)
    engine.apply({"tiers.retrieval": "skip"})
    request_id = begun(runner)
    found = table(runner, request_id)
    assert found[:resident] == list(range(resident)) and resident >= 5
    assert len(found) < 22 and engine.fetch_counters.num_left_out_pages > 0
    runner.drain()
    engine.close()


@pytest.mark.parametrize("what", ["abort", "preempt", "swap", "recode", "rebuild", "off"])
def test_late_pages_find_nobody(what: str) -> None:
    """Whatever happens to the request meanwhile: nothing is written, and nothing stays pinned."""
    preemption = "swap" if what == "swap" else "recompute"
    runner = cold("late", **{"scheduling.preemption": preemption})
    engine = runner.engine
    request_id = begun(runner)
    request = engine.requests[request_id]
    if what == "abort":
        engine.abort(request_id)
    elif what in ("preempt", "swap"):
        engine.scheduler.preempt(request, "test")
    elif what == "off":
        engine.apply({"tiers.disk_mib": 0.0})
    else:
        change = {"cache.k_format": "int8"} if what == "recode" else {"cache.block_size": 8}
        engine.apply(change)
    engine.hierarchy.wait_io()
    runner.step(3)
    runner.drain()
    assert engine.fetcher.retrieval.num_late == 0
    assert what == "abort" or len(runner.outputs[request_id]) == 12
    engine.hierarchy.wait_io()
    runner.step()
    assert engine.hierarchy.stats().num_jobs == 0
    assert all(tier.pinned_bytes == 0 for tier in engine.hierarchy.stats().tiers)
    engine.close()


def test_a_late_page_that_finds_no_room_is_skipped() -> None:
    runner = cold("late", **{"cache.hbm_budget_mib": pages(32)})
    engine = runner.engine
    request_id = begun(runner)
    pool = engine.stack.pool
    free = pool.allocate([(0, pool.num_free(0))])[0]
    engine.hierarchy.wait_io()
    engine.fetcher.poll()
    assert engine.fetch_counters.num_late_pages == 0 and engine.fetcher.retrieval.num_late == 0
    pool.free(free)
    assert len(table(runner, request_id)) < 22
    runner.drain()
    engine.close()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_schedule_with_holes_keeps_the_invariants(data: st.DataObject) -> None:
    """Requests over shared texts, pages pushed down, aborts and live changes, checked each step."""
    draw = data.draw
    grouping = draw(st.sampled_from(["model", "layer", "head"]))
    runner = Runner(build(BELOW | {"cache.grouping": grouping, "tiers.retrieval": "late",
                                   "cache.hbm_budget_mib": pages(48)}))  # fmt: skip
    engine = runner.engine
    for seed in (1, 2):
        runner.one(tokens(80, seed), 2)
    push_down(engine)
    for _ in range(draw(st.integers(4, 12))):
        kind = draw(st.sampled_from(["add", "add", "push", "abort", "change", "retain", "wait"]))
        if kind == "add" and len(engine.requests) < 5:
            runner.add(tokens(80, draw(st.integers(1, 2))) + tokens(5, 9), draw(st.integers(1, 20)))
        elif kind == "push":
            push_down(engine)
        elif kind == "abort" and engine.requests:
            engine.abort(draw(st.sampled_from(sorted(engine.requests))))
        elif kind == "change":
            engine.apply({"tiers.retrieval": draw(st.sampled_from(["all", "late", "skip"])),
                          "tiers.retrieval_share": draw(st.sampled_from([0.2, 0.9])),
                          "tiers.load": draw(st.sampled_from(["whole", "layerwise"])),
                          "tiers.prefetch": draw(st.sampled_from(["wait", "best_effort"])),
                          "tiers.dram_mib": draw(st.sampled_from([0.0, 0.0, 0.1]))})  # fmt: skip
        elif kind == "retain":
            level = draw(st.sampled_from(["page", "token"]))
            policy = draw(st.sampled_from(["none", "sink+window"]))
            engine.apply({"retention.level": level, "retention.policy": policy,
                          "retention.budget_tokens": 40})  # fmt: skip
        elif kind == "wait":
            engine.hierarchy.wait_io()
        runner.step(draw(st.integers(1, 4)))
    runner.drain()
    assert_idle(engine)
    assert not any(runner.errors.values()), runner.errors
    assert engine.fetcher.retrieval.num_late == 0
    event(f"holes: {engine.fetch_counters.num_left_out_pages > 0}")
    engine.close()


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("tiers.retrieval", "some", "choose one of all, late, skip"),
        ("tiers.retrieval_share", 1.5, "0.0 to 1.0 share of the attention mass"),
    ],
)
def test_bad_values_are_refused(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        build({path: value})
