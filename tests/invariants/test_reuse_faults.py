"""The faults that concern reuse, once more for every index and with beginnings of blocks shared.

Numbers as in `test_known_faults`; the last ones are other engines' faults of eviction and reuse.
"""

from typing import Any

import pytest

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.request import Request, RequestSpec, RequestStatus

KINDS = [("radix", False), ("hash", True), ("radix", True)]  # the other: `test_known_faults`
every_kind = pytest.mark.parametrize(("index", "partial"), KINDS)


def runner_of(index: str, partial: bool, **more: Any) -> Runner:
    return Runner(build({"cache.index": index, "cache.partial_hits": partial} | more))


@every_kind
def test_01_tenants_do_not_share(index: str, partial: bool) -> None:
    runner = runner_of(index, partial, **{"tiers.dram_mib": 0.5})
    prompt = tokens(26)
    runner.one(prompt, 4, salt="a")
    for below in (False, True):
        if below:
            runner.engine.stack.pool.drop_idle_rows()
        other = runner.add(prompt, 4, salt=f"b{below}")
        runner.drain()
        assert runner.engine.finished[other].num_cached_tokens == 0
    again = runner.add(prompt, 4, salt="a")
    runner.drain()
    assert runner.engine.finished[again].num_cached_tokens >= 24


@every_kind
@pytest.mark.parametrize("length", [4, 9])
def test_02_full_hit_leaves_one_token(index: str, partial: bool, length: int) -> None:
    runner = runner_of(index, partial)
    prompt = tokens(length)
    first = runner.one(prompt, 3)
    again = runner.add(prompt, 3)
    runner.step()
    # a beginning can only come from a full block: the answer made the last one full
    most = length - 1 if partial else (length - 1) // 4 * 4
    assert runner.engine.requests[again].num_cached_tokens == most
    runner.drain()
    assert runner.outputs[again] == first


@every_kind
def test_03_reused_blocks_never_answer_to_old_keys(index: str, partial: bool) -> None:
    runner = runner_of(index, partial, **{"cache.hbm_budget_mib": pages(32)})
    shared = tokens(6)
    for seed in (0, 1, 2, 0):
        prompt = shared + tokens(70, seed)
        assert_naive(model(), prompt, runner.one(prompt, 3))
    assert runner.engine.stack.pool.num_evicted_rows > 20


@every_kind
def test_05_failed_admission_changes_nothing(index: str, partial: bool) -> None:
    runner = runner_of(index, partial, **{"cache.hbm_budget_mib": pages(32)})
    prompt = tokens(40)
    runner.one(prompt, 1)
    manager, pool = runner.engine.stack.manager, runner.engine.stack.pool
    text = prompt[:38] + [251] + tokens(100, 9)
    request = Request("x", RequestSpec(token_ids=text), text, 0.0)
    hit = manager.find_prefix(request)
    assert (hit.num_tokens, hit.num_partial_tokens) == ((38, 2) if partial else (36, 0))
    before = (pool.ref_cnt.tolist(), pool.linked_blocks(0), pool.index.rows(),
              len(runner.engine.lifetimes))  # fmt: skip
    assert not manager.admit(request, hit, 24 * 4)
    after = (pool.ref_cnt.tolist(), pool.linked_blocks(0), pool.index.rows(),
             len(runner.engine.lifetimes))  # fmt: skip
    assert after == before
    assert manager.admit(request, hit, 22 * 4), "the block that is copied may go for it"
    manager.free(request)
    runner.check()


def test_12_a_split_leaves_every_page_to_its_request() -> None:
    """mini-sglang PR #142: with pages of several tokens an edge is split between them only."""
    runner = runner_of("radix", True)
    shared = tokens(11)
    ids = []
    for at in range(0, 12, 2):
        ids.append((runner.add(shared[: 11 - at] + tokens(9, at), 4), at))
        runner.step()
    runner.drain()
    for request_id, at in ids:
        assert_naive(model(), shared[: 11 - at] + tokens(9, at), runner.outputs[request_id])
    assert runner.engine.stack.pool.index.fault() == ""


@every_kind
def test_pages_without_a_row_go_before_cached_ones(index: str, partial: bool) -> None:
    """vLLM PR #42656: a tail that is not full must not push what is cached out of the order."""
    runner = runner_of(index, partial, **{"cache.hbm_budget_mib": pages(34)})
    kept = tokens(17)
    runner.one(kept, 1)
    for seed in range(12):
        runner.one(tokens(2, seed), 1)  # each leaves nothing but a tail
    assert runner.engine.stack.pool.num_evicted_rows == 0
    again = runner.add(kept, 1)
    runner.drain()
    assert runner.engine.finished[again].num_cached_tokens == 16


@every_kind
def test_no_more_is_evicted_than_is_needed(index: str, partial: bool) -> None:
    """SGLang #34958: a token that fits the last page evicts nothing, a new page one block."""
    runner = runner_of(index, partial, **{"cache.hbm_budget_mib": pages(32)})
    runner.one(tokens(100, 1), 1)  # 25 rows
    request_id = runner.add(tokens(9, 2), 24)
    pool = runner.engine.stack.pool
    runner.until(lambda: pool._lists.lengths[0] and pool.cached[pool._lists.first(0)]
                 and not pool.num_unassigned_slabs)  # fmt: skip
    while request_id in runner.engine.requests:
        before, request = pool.num_evicted_rows, runner.engine.requests[request_id]
        full = request.num_computed_tokens % 4 == 0
        runner.step()
        assert pool.num_evicted_rows - before <= int(full)
    assert pool.num_evicted_rows > 0


@every_kind
def test_chunks_advance_without_the_prefix_cache(index: str, partial: bool) -> None:
    """SGLang #36855: progress of a long prompt must not depend on what is inserted."""
    runner = runner_of(index, partial, **{"cache.prefix_caching": False})
    prompt = tokens(70)
    assert_naive(model(), prompt, runner.one(prompt, 4))
    assert len(runner.engine.stack.pool.index) == 0


def test_a_fork_acts_on_everything_a_token_has() -> None:
    """Structure, fault 1: codes, scales and positions of a copied beginning move together."""
    settings = {"cache.k_format": "int4", "cache.v_format": "int8", "cache.grouping": "layer",
                "cache.block_size": 16}  # fmt: skip
    runner = runner_of("radix", True, **settings)
    shared = tokens(40)
    alone = runner.one(shared + [251] * 5, 40, salt="alone")
    runner.one(shared + [250] * 20, 2)
    forked = runner.add(shared + [251] * 5, 40)
    runner.step()
    assert runner.engine.requests[forked].num_cached_tokens == 40
    runner.drain()
    assert runner.status[forked] == RequestStatus.FINISHED_LENGTH
    assert runner.outputs[forked] == alone
