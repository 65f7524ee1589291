"""The instructive faults other engines had (shared numbering), each as a test of ours."""

import itertools
import threading

import numpy as np
import pytest

from tests.engine.harness import Runner, assert_idle, assert_naive, build, model, pages, tokens
from workbench.cache.keys import CacheIdentity, TierKey, key_text, next_key, tagged_key
from workbench.cache.kv_cache_manager import PrefixHit
from workbench.cache.tier import Lookup
from workbench.clock import ManualClock
from workbench.request import Request, RequestSpec, RequestStatus
from workbench.spatial.hierarchy.io_thread import Outcome
from workbench.spatial.hierarchy.medium_calls import MediumCalls, Page
from workbench.temporal.scheduling import order
from workbench.temporal.scheduling.arrivals import MIN_DEADLINE_S
from workbench.temporal.scheduling.order import MAX_DISPLACED

TIERS = {"tiers.dram_mib": 0.5, "tiers.gate": False}


# 1. extra keys of different kinds hashed as bare strings (vLLM #44701)


def test_01_key_fields_are_tagged() -> None:
    fields = ("weights", "tokenizer", "rope", "numerics")
    roots = set()
    for name in fields:
        values = dict.fromkeys(fields, "") | {name: "x"}
        roots.add(CacheIdentity(**values, block_size=4).root(""))
    roots.add(CacheIdentity("", "", "", "", 4).root("x"))
    roots.add(CacheIdentity("", "", "", "", 4).root(""))
    roots.add(CacheIdentity("", "", "", "", 8).root(""))
    assert len(roots) == 7
    # lengths are part of the fields, so that nothing moves across a border
    one = CacheIdentity("a|tokenizer:1:b", "", "", "", 4).root("")
    two = CacheIdentity("a", "b", "", "", 4).root("")
    assert one != two


def test_01_blocks_are_shared_only_if_everything_matches() -> None:
    base = CacheIdentity("w", "t", "r", "n", 4)
    variants = itertools.product(("", "salt"), ([1, 2, 3, 4], [1, 2, 3, 5]), ("int8", "int8<bf16"))
    keys = [tagged_key(next_key(base.root(salt), text), lineage)
            for salt, text, lineage in variants]  # fmt: skip
    assert len(set(keys)) == len(keys)


def test_01_tenants_do_not_share() -> None:
    runner = Runner(build())
    prompt = tokens(24)
    runner.one(prompt, 4, salt="a")
    other = runner.add(prompt, 4, salt="b")
    runner.step()
    assert runner.engine.requests[other].num_cached_tokens == 0
    assert runner.engine.requests[other].miss.kind == "tag"
    runner.drain()
    same = runner.add(prompt, 4, salt="a")
    runner.step(2)
    assert runner.engine.requests[same].num_cached_tokens == 20
    runner.drain()


# 2. a full hit leaves nothing to compute logits from (nano-vllm #144)


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_02_full_hit_leaves_one_token(length: int) -> None:
    runner = Runner(build())
    prompt = tokens(length, seed=length)
    first = runner.one(prompt, 6)
    again = runner.add(prompt, 6)
    runner.step()
    request = runner.engine.requests[again]
    assert request.num_cached_tokens == (length - 1) // 4 * 4
    assert request.num_cached_tokens <= length - 1
    runner.drain()
    assert runner.outputs[again] == first
    assert_naive(model(), prompt, first)


# 3. a reused block still answers to its old key (nano-vllm #163)


def test_03_reused_blocks_never_answer_to_old_keys() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    for seed in range(12):  # each fills most of the pool: every block is reused several times
        prompt = tokens(80, seed=seed % 5)
        assert_naive(model(), prompt, runner.one(prompt, 4))
    assert runner.engine.stack.pool.num_evicted_rows > 50
    index = runner.engine.stack.pool.index
    for row in index.rows():
        assert index.get(row.key) is row


# 4. counts taken before the prefix hit changed them; the sampled token dropped (nano-vllm #207)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_04_preempted_streams_equal_undisturbed_ones(preemption: str) -> None:
    tight = TIERS | {"cache.hbm_budget_mib": pages(40), "scheduling.preemption": preemption,
                     "scheduling.admit_whole_prompt": False}  # fmt: skip
    runner = Runner(build(tight))
    prompts = [tokens(20 + 5 * at, seed=at) for at in range(6)]
    ids = [runner.add(prompt, 40) for prompt in prompts]
    runner.drain()
    assert runner.engine.metrics.num_preemptions > 0
    if preemption == "swap":
        assert runner.engine.fetcher.counters.num_swapped_pages > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert len(runner.outputs[request_id]) == 40
        assert_naive(model(), prompt, runner.outputs[request_id])


# 5. hit blocks touched before the space check and not undone (vLLM #11562)


def test_05_failed_admission_changes_nothing() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    prompt = tokens(40)
    runner.one(prompt, 1)  # 10 cached blocks, all of them idle
    manager, pool = runner.engine.stack.manager, runner.engine.stack.pool
    request = Request("x", RequestSpec(token_ids=prompt), prompt + tokens(100, 9), 0.0)
    hit = manager.find_prefix(request)
    assert hit.num_tokens == 40
    before = _pool_state(pool)
    # 22 free + 10 idle hits: a count that takes the hits twice would let 23 more in
    assert not manager.admit(request, hit, 23 * 4)
    assert not manager.admit(request, hit, 22 * 4, watermark_blocks=1)
    assert not manager.admit(request, hit, 4, reserve_tokens=22 * 4)
    assert _pool_state(pool) == before
    assert manager.admit(request, hit, 22 * 4)
    manager.commit(request, 22 * 4)
    assert not manager.grow(request, 1)
    manager.free(request)
    runner.check()


def _pool_state(pool) -> tuple:
    return (pool.ref_cnt.tolist(), pool.linked_blocks(0), pool.cached.tolist(),
            list(pool._unassigned), pool.index.rows())  # fmt: skip


# 6. admitted on its first chunk, preempted, admitted again, ... (vLLM #25538)


def _recompute_tax(admit_whole_prompt: bool) -> int:
    runner = Runner(build({"cache.hbm_budget_mib": pages(48), "cache.prefix_caching": False,
                           "scheduling.admit_whole_prompt": admit_whole_prompt}))  # fmt: skip
    for seed in range(6):
        runner.add(tokens(100, seed), 2)
    runner.drain()
    return runner.engine.metrics.recomputed_tokens


def test_06_admitting_whole_prompts_avoids_the_thrash() -> None:
    assert _recompute_tax(True) == 0
    assert _recompute_tax(False) > 0


def test_06_the_oldest_is_never_preempted_for_a_younger_one() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(48),
                           "scheduling.admit_whole_prompt": False}))  # fmt: skip
    first = runner.add(tokens(60), 80)
    for seed in range(1, 6):
        runner.add(tokens(50, seed), 30)
    runner.drain()
    assert runner.engine.finished[first].num_preemptions == 0
    assert runner.engine.metrics.num_preemptions > 0


def _most_displaced() -> int:
    """Long prompts, each admitted on its first chunk into what is left of the pool."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(48), "cache.prefix_caching": False,
                           "scheduling.admit_whole_prompt": False}))  # fmt: skip
    ids = [runner.add(tokens(90, seed), 40) for seed in range(6)]
    while runner.engine.has_work():
        runner.engine.step()
    runner.check()
    ended = [runner.engine.finished[request_id] for request_id in ids]
    assert {request.num_output_tokens for request in ended} == {40}
    return max(request.num_displaced for request in ended)


def test_06_preemptions_of_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _most_displaced() == MAX_DISPLACED
    monkeypatch.setattr(order, "MAX_DISPLACED", 1000)
    assert _most_displaced() > MAX_DISPLACED


# 7. "does not fit now" and "can never fit" in one branch (vLLM #35541)


def test_07_a_request_that_outgrows_the_pool_fails_alone() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    small = runner.add(tokens(10, 1), 10)
    large = runner.add(tokens(100), 100)
    runner.drain()
    assert runner.status[large] == RequestStatus.FINISHED_ERROR
    assert runner.errors[large] == (
        "request 2 needs 33 blocks for 129 tokens, and the whole pool has 32: "
        "raise cache.hbm_budget_mib or choose a smaller format"
    )
    assert runner.status[small] == RequestStatus.FINISHED_LENGTH


# 8. parked loads hold the blocks the head needs (vLLM #45388)


def test_08_two_loads_that_together_exceed_the_pool() -> None:
    runner = Runner(build(TIERS | {"cache.hbm_budget_mib": pages(40)}))
    prompts = [tokens(100, 1), tokens(100, 2)]
    texts = [runner.one(prompt, 20) for prompt in prompts]
    runner.one(tokens(150, 3), 2)  # pushes both down
    ids = [runner.add(prompt, 20) for prompt in prompts]
    runner.step()
    statuses = [runner.engine.requests[request_id].status for request_id in ids]
    assert statuses == [RequestStatus.LOADING] * 2
    assert not (runner.engine.stack.pool.ref_cnt > 0).any(), "a load holds no blocks"
    runner.drain()
    assert [runner.outputs[request_id] for request_id in ids] == texts
    assert runner.engine.fetcher.counters.num_loaded_pages > 0


def test_08_a_large_head_does_not_stop_what_runs() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(40)}))
    running = runner.add(tokens(60), 20)
    runner.step(6)
    head, behind = runner.add(tokens(130, 1), 4), runner.add(tokens(8, 2), 4)
    runner.drain()
    assert {runner.status[request_id] for request_id in (running, head, behind)} == {
        RequestStatus.FINISHED_LENGTH
    }


# 9. aborted while KV is loading: blocks held for ever (vLLM #46283)


def _in_state(state: str) -> tuple[Runner, str]:
    runner = Runner(build(TIERS | {"cache.hbm_budget_mib": pages(40), "tiers.disk_mib": 1.0,
                                   "scheduling.admit_whole_prompt": False}))  # fmt: skip
    engine = runner.engine
    if state == "waiting":
        runner.add(tokens(120), 20)
        runner.step(9)
        request_id = runner.add(tokens(120, 1), 20)
        runner.step()
    elif state == "loading":
        runner.one(tokens(100, 1), 4)
        runner.one(tokens(140, 2), 4)
        request_id = runner.add(tokens(100, 1), 4)
        runner.until(lambda: engine.requests[request_id].status is RequestStatus.LOADING, 3)
    elif state in ("first chunk", "second chunk"):
        request_id = runner.add(tokens(60), 4)
        runner.step(1 if state == "first chunk" else 2)
    elif state == "running":
        request_id = runner.add(tokens(20), 20)
        runner.step(6)
    else:
        engine.apply({"scheduling.preemption": "swap" if state == "swapped" else "recompute"})
        runner.add(tokens(60), 60)
        request_id = runner.add(tokens(60, 1), 60)
        runner.until(lambda: engine.requests[request_id].status is RequestStatus.PREEMPTED)
        assert engine.fetcher.is_swapped(engine.requests[request_id]) == (state == "swapped")
    return runner, request_id


STATES = ["waiting", "loading", "first chunk", "second chunk", "running", "preempted", "swapped"]


@pytest.mark.parametrize("state", STATES)
def test_09_abort_in_each_state_gives_everything_back(state: str) -> None:
    runner, request_id = _in_state(state)
    engine = runner.engine
    assert engine.abort(request_id)
    assert not engine.abort(request_id)
    runner.check()
    runner.step()
    assert runner.status[request_id] == RequestStatus.FINISHED_ABORTED
    runner.drain()
    engine.hierarchy.wait_io()
    runner.step()
    engine.hierarchy.check_integrity()
    pool = engine.stack.pool
    pool.evict_all()
    assert pool.num_unassigned_slabs == pool.num_slabs, "every slab came back"
    assert not [key for tier in ("G2", "G3") for key, *_ in engine.hierarchy.entries(tier)
                if not isinstance(key, bytes)], "private pages died with their request"  # fmt: skip


def _held_back(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[threading.Event, list[str]]:
    """The tier's thread waits before each call of `name` until the event is set; what it did."""
    go_on, done, real = threading.Event(), [], getattr(MediumCalls, name)

    def later(calls: MediumCalls, pages: list[Page]) -> list[Outcome]:
        assert go_on.wait(30)
        outcomes = real(calls, pages)
        done.extend(key_text(page.entry.key) for page in pages)
        return outcomes

    monkeypatch.setattr(MediumCalls, name, later)
    return go_on, done


def test_09_a_load_that_never_ends_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    runner = Runner(build({"tiers.disk_mib": 1.0, "cache.hbm_budget_mib": pages(32)}, clock=clock))
    engine, prompt = runner.engine, tokens(60)
    first = runner.one(prompt, 4)
    runner.one(tokens(126, 1), 2)  # pushes the prompt down
    assert engine.hierarchy.wait_io()
    go_on, _ = _held_back(monkeypatch, "get")
    again = runner.add(prompt, 4)
    runner.step(5)
    request = engine.requests[again]
    assert request.status is RequestStatus.LOADING
    clock.advance(MIN_DEADLINE_S + 1)
    runner.step()
    assert request.status is RequestStatus.RUNNING and request.num_cached_tokens == 0
    runner.drain()
    assert runner.outputs[again] == first
    assert engine.fetch_counters.num_late_loads == 1
    go_on.set()
    assert engine.hierarchy.wait_io()
    runner.step()
    assert not any(pinned for _, _, pinned, _ in engine.hierarchy.entries("G3"))
    assert engine.hierarchy.stats().staging_used_bytes == 0
    engine.hierarchy.check_integrity()


# 10. a hash is visible before the bytes are written (vLLM #45704)


def test_10_a_page_that_is_still_written_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(build({"tiers.disk_mib": 1.0, "cache.hbm_budget_mib": pages(32)}))
    engine, prompt = runner.engine, tokens(60)
    first = runner.one(prompt, 4)
    go_on, written = _held_back(monkeypatch, "put")
    lookup, answers = engine.hierarchy.lookups.lookup, []

    def spy(key: TierKey) -> Lookup:
        answer = lookup(key)
        answers.append(answer)
        assert answer is not Lookup.HIT or key_text(key) in written
        return answer

    monkeypatch.setattr(engine.hierarchy.lookups, "lookup", spy)
    runner.one(tokens(126, 1), 2)  # pushes the prompt down, as far as the I/O thread lets it
    again = runner.add(prompt, 4)
    runner.step(20)
    assert engine.requests[again].status is RequestStatus.WAITING and not written
    assert Lookup.HIT_PENDING in answers and Lookup.HIT not in answers
    go_on.set()
    assert engine.hierarchy.wait_io()
    runner.drain()
    assert engine.fetch_counters.num_loaded_pages > 0
    assert runner.outputs[again] == first


def test_10_rows_are_visible_only_after_their_bytes() -> None:
    runner = Runner(build())
    prompt = tokens(40)
    runner.add(prompt, 4)
    request = next(iter(runner.engine.requests.values()))
    while runner.engine.has_work():
        seen = len(runner.engine.stack.pool.index)
        assert seen <= request.num_computed_tokens // 4
        runner.step()


def test_10_pages_come_back_with_the_bytes_that_left() -> None:
    runner = Runner(build(TIERS | {"tiers.disk_mib": 1.0, "cache.hbm_budget_mib": pages(32)}))
    engine = runner.engine
    prompt = tokens(60)
    runner.one(prompt, 2)
    left = {row.key: engine.stack.store.read_row(engine.stack.manager.parts(row.blocks)).tobytes()
            for row in engine.stack.pool.index.rows()}  # fmt: skip
    runner.one(tokens(126, 1), 2)
    assert not left.keys() & {row.key for row in engine.stack.pool.index.rows()}
    runner.add(prompt, 2)
    runner.until(lambda: engine.fetcher.counters.num_loaded_pages)
    runner.step()
    back = {row.key: engine.stack.store.read_row(engine.stack.manager.parts(row.blocks)).tobytes()
            for row in engine.stack.pool.index.rows() if row.key in left}  # fmt: skip
    assert sum(left[key] == data for key, data in back.items()) >= 14  # the last is recomputed
    runner.drain()


# 11. host blocks evicted between lookup and load, by the load's own allocation (vLLM #39702)


def test_11_loads_while_the_host_tier_evicts() -> None:
    page_mib = pages(1)
    runner = Runner(build({"tiers.dram_mib": 16 * page_mib, "tiers.gate": False,
                           "cache.hbm_budget_mib": pages(32)}))  # fmt: skip
    prompts = [tokens(60, seed) for seed in range(3)]
    texts = [runner.one(prompt, 4) for prompt in prompts]
    for _ in range(3):  # 48 pages go round through a host tier of 16
        ids = [runner.add(prompt, 4) for prompt in prompts]
        runner.drain()
        assert [runner.outputs[request_id] for request_id in ids] == texts
    assert runner.engine.fetcher.counters.num_loaded_pages > 0
    assert runner.engine.hierarchy.stats().tiers[0].num_evictions > 0


# 12. several ways out, double free, partial tails (SGLang #12224)


def test_12_free_is_idempotent_and_the_only_way_out() -> None:
    runner = Runner(build())
    runner.add(tokens(23), 4)
    runner.step(2)
    engine = runner.engine
    request = engine.scheduler.running[0]
    engine.stack.manager.free(request)
    engine.stack.manager.free(request)
    assert not (engine.stack.pool.ref_cnt > 0).any()
    with pytest.raises(RuntimeError, match="block 0 is freed twice"):
        engine.stack.pool.free([0])


def test_12_equal_blocks_of_two_requests_stay_apart() -> None:
    """No dedup: tables are append-only, and only one of the equal rows is in the index."""
    runner = Runner(build())
    prompt = tokens(16)
    first, second = runner.add(prompt, 8), runner.add(prompt, 8)
    runner.step(2)
    tables = runner.engine.stack.manager.requests
    assert not set(tables[first].blocks(0)) & set(tables[second].blocks(0))
    runner.drain()
    assert runner.outputs[first] == runner.outputs[second]


# also worth a test


def test_recomputed_tokens_are_no_hits() -> None:  # vLLM #25780
    runner = Runner(build({"cache.hbm_budget_mib": pages(40),
                           "scheduling.admit_whole_prompt": False}))  # fmt: skip
    for seed in range(5):
        runner.add(tokens(30, seed), 40)
    runner.drain()
    metrics = runner.engine.metrics
    assert metrics.num_preemptions > 0 and metrics.recomputed_tokens > 0
    assert metrics.hit_tokens == 0, "random prompts share nothing"
    assert metrics.prompt_tokens == 150
    numbers = metrics.numbers()
    assert numbers["hit_rate"].value == 0.0
    assert numbers["hit_rate_resumed"].value is not None


def test_a_preempted_request_keeps_its_turn() -> None:  # vLLM #41951
    runner = Runner(build({"cache.hbm_budget_mib": pages(36),
                           "scheduling.admit_whole_prompt": False}))  # fmt: skip
    runner.add(tokens(60), 60)
    second = runner.add(tokens(60, 1), 20)
    runner.until(lambda: runner.engine.requests[second].status is RequestStatus.PREEMPTED)
    third = runner.add(tokens(60, 2), 20)
    queue = runner.engine.scheduler._queue()
    assert [request.request_id for request in queue] == [second, third]
    runner.drain()


def test_each_preemption_frees_blocks_at_once() -> None:  # vllm-ascend #16315
    runner = Runner(build({"cache.hbm_budget_mib": pages(40),
                           "scheduling.admit_whole_prompt": False}))  # fmt: skip
    for seed in range(4):
        runner.add(tokens(36, seed), 30)
    metrics, worst = runner.engine.metrics, 0
    while runner.engine.has_work():
        before = metrics.num_preemptions
        runner.step()
        worst = max(worst, metrics.num_preemptions - before)
    assert metrics.num_preemptions > 0
    assert worst == 1, "one victim gives ten blocks, and the step needs one for each request"


def test_partial_blocks_are_reused_before_cached_ones() -> None:  # vLLM PR #42656
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    runner.one(tokens(40), 1)
    cached = len(runner.engine.stack.pool.index)
    for seed in range(20):  # each holds one partial block and no full one
        runner.one(tokens(2, seed), 1)
    assert len(runner.engine.stack.pool.index) == cached
    assert runner.engine.stack.pool.num_evicted_rows == 0


@pytest.mark.parametrize("extra", [0, 1])
def test_room_in_the_last_page_needs_no_new_one(extra: int) -> None:  # SGLang #34958
    """Decoding into a page that has room evicts nothing; the first token beyond it takes one."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    runner.one(tokens(40), 1)  # 10 idle rows; 22 pages are free
    request_id = runner.add(tokens(22 * 4 - 3, 1), 4 + extra)  # its last page has room for three
    runner.drain()
    assert runner.status[request_id] == RequestStatus.FINISHED_LENGTH
    assert runner.engine.metrics.num_preemptions == 0
    assert runner.engine.stack.pool.num_evicted_rows == extra


@pytest.mark.parametrize(("more", "status"), [(4, "finished_length"), (5, "finished_error")])
def test_the_last_slot_of_the_pool_is_used(more: int, status: str) -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    request_id = runner.add(tokens(125), more)  # stores 128 tokens, or one too many
    runner.drain()
    assert runner.status[request_id] == status
    assert runner.engine.metrics.num_preemptions == 0


def test_chunks_advance_without_the_prefix_cache() -> None:  # SGLang #36855
    runner = Runner(build({"cache.prefix_caching": False, "scheduling.chunk_tokens": 4}))
    prompt = tokens(50)
    assert_naive(model(), prompt, runner.one(prompt, 4))
    assert len(runner.engine.stack.pool.index) == 0


def test_prompt_of_one_block_has_a_key() -> None:  # nano-vllm PR #66
    runner = Runner(build())
    prompt = tokens(4)
    runner.one(prompt, 2)
    assert len(runner.engine.stack.pool.index) == 1
    longer = runner.add(prompt + [1, 2], 2)
    runner.step()
    assert runner.engine.requests[longer].num_cached_tokens == 4
    runner.drain()


def test_tables_are_written_in_place_by_one_owner() -> None:
    runner = Runner(build())
    request_id = runner.add(tokens(9), 30)
    runner.step()
    seen: list[int] = []
    while runner.engine.has_work():
        table = runner.engine.stack.manager.requests[request_id].blocks(0).tolist()
        assert table[: len(seen)] == seen, "a table only grows"
        seen = table
        runner.step()
    assert_idle(runner.engine)
    assert isinstance(runner.engine.stack.manager.find_prefix(_fresh()), PrefixHit)


def _fresh() -> Request:
    return Request("y", RequestSpec(token_ids=[1]), np.arange(9).tolist(), 0.0)


@pytest.mark.parametrize("how", [{"cache.prefix_caching": False}, {"cache.mode": "off"},
                                 {"cache.allocation": "contiguous"}])  # fmt: skip
def test_tiers_serve_no_prefix_that_hbm_may_not_serve(how: dict) -> None:
    runner = Runner(build(TIERS | {"cache.hbm_budget_mib": pages(32)}))
    prompt = tokens(60)
    first = runner.one(prompt, 4)
    runner.one(tokens(126, 1), 2)  # pushes the prompt down
    runner.engine.apply(how)
    assert runner.one(prompt, 4) == first
    assert runner.engine.fetcher.counters.num_loaded_pages == 0
    assert runner.engine.metrics.hit_tokens == 0
