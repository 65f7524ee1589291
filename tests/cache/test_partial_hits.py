"""Hits that end inside a block: what is copied, what is counted, and who never gets one."""

from typing import Any

import pytest

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.request import RequestStatus
from workbench.settings.cache import PREFIX_INDEXES

ON = {"cache.partial_hits": True}
SIZE = 4


def runner_of(index: str = "radix", **more: Any) -> Runner:
    return Runner(build(ON | {"cache.index": index} | more))


def cached_tokens(runner: Runner, prompt: list[int], max_tokens: int = 6, **more: Any) -> int:
    """Hit tokens of a prompt that runs alone; it has to continue like the naive loop."""
    request_id = runner.add(prompt, max_tokens, **more)
    runner.until(lambda: request_id in runner.engine.stack.manager.requests)
    count = runner.engine.requests[request_id].num_cached_tokens
    runner.drain()
    assert runner.status[request_id] == RequestStatus.FINISHED_LENGTH
    assert count <= len(prompt) - 1  # I12
    if runner.engine.config.cache.k_format == "fp32":
        assert_naive(model(), prompt, runner.outputs[request_id])
    return count


@pytest.mark.parametrize("index", PREFIX_INDEXES)
@pytest.mark.parametrize("common", [1, 4, 10, 15])
def test_a_hit_ends_where_the_texts_part(index: str, common: int) -> None:
    runner = runner_of(index)
    shared = tokens(common)
    cached_tokens(runner, shared + [251] * 12)
    assert cached_tokens(runner, shared + [252] * 12) == common
    runner.engine.apply({"cache.partial_hits": False})
    assert cached_tokens(runner, shared + [253] * 12) == common // SIZE * SIZE


@pytest.mark.parametrize("index", PREFIX_INDEXES)
@pytest.mark.parametrize("length", [2, 4, 9])
def test_the_same_prompt_leaves_one_token(index: str, length: int) -> None:
    """I12: a block that is cached whole is hit up to its last token but one."""
    runner = runner_of(index)
    prompt = tokens(length)
    cached_tokens(runner, prompt)
    assert cached_tokens(runner, prompt) == length - 1


@pytest.mark.parametrize("grouping", ["model", "halves", "layer", "head"])
def test_pages_of_all_groups_are_copied_and_the_source_stays(grouping: str) -> None:
    """The byte guard holds: nothing is written into the block that was copied."""
    runner = runner_of(**{"cache.grouping": grouping})
    shared = tokens(6)
    first, second = runner.add(shared + [251] * 9, 20), None
    runner.step(4)
    second = runner.add(shared + [252] * 9, 20)
    runner.step()
    tables = runner.engine.stack.manager.requests
    for group in range(len(runner.engine.stack.manager.classes)):
        ours, theirs = tables[second].blocks(group), tables[first].blocks(group)
        assert ours[0] == theirs[0] and ours[1] != theirs[1]
    assert runner.engine.requests[second].num_cached_tokens == 6
    runner.drain()
    assert_naive(model(), shared + [251] * 9, runner.outputs[first])
    assert_naive(model(), shared + [252] * 9, runner.outputs[second])


@pytest.mark.parametrize("index", PREFIX_INDEXES)
def test_tenants_formats_and_evicted_blocks_give_none(index: str) -> None:
    runner = runner_of(index)
    shared = tokens(7)
    cached_tokens(runner, shared + [251] * 9, salt="a")
    assert cached_tokens(runner, shared + [252] * 9, salt="b") == 0
    assert cached_tokens(runner, shared + [253] * 9, salt="a") == 7
    runner.engine.apply(
        {"cache.reuse": "exact", "cache.k_format": "int8", "cache.v_format": "int8"}
    )
    assert cached_tokens(runner, shared + [251] * 9, salt="a") == 0, "another numerics tag"
    runner.engine.stack.pool.evict_all()
    assert cached_tokens(runner, shared + [252] * 9, salt="a") == 0, "its blocks are gone"


def test_sealed_pages_are_never_gone_on_with() -> None:
    """A page that is encoded whole cannot be copied up to a token: whole blocks only."""
    runner = runner_of(
        **{"cache.k_format": "kivi4", "cache.v_format": "kivi4", "cache.block_size": 8}
    )
    shared = tokens(13)
    cached_tokens(runner, shared + [251] * 9)
    assert cached_tokens(runner, shared + [252] * 9) == 8


def test_a_request_that_evicted_tokens_lends_no_beginning() -> None:
    """What is computed after an eviction is in no index, so nothing of it can be copied."""
    runner = runner_of(**{
        "retention.policy": "sink+window", "retention.budget_tokens": 16,
        "retention.sink_tokens": 4, "retention.window_tokens": 8,
    })  # fmt: skip
    prompt = tokens(60)
    one = runner.add(prompt, 8)
    runner.drain()
    assert runner.status[one] == RequestStatus.FINISHED_LENGTH
    runner.engine.apply({"retention.policy": "none"})
    most = max(len(row.token_ids) for row in runner.engine.stack.pool.index.rows())
    indexed = len(runner.engine.stack.pool.index) * most
    assert cached_tokens(runner, prompt[:59] + [251] * 4) <= indexed


@pytest.mark.parametrize("index", PREFIX_INDEXES)
def test_the_source_may_be_evicted_for_the_copy(index: str) -> None:
    """A request that needs every block still gets the beginning of one that goes for it."""
    runner = runner_of(index, **{"cache.hbm_budget_mib": pages(32)})
    shared = tokens(3)
    cached_tokens(runner, shared + tokens(100, 1), 2)
    prompt = shared + tokens(119, 2)
    assert cached_tokens(runner, prompt, 4) == 3
    assert runner.engine.stack.pool.num_evicted_rows > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("index", PREFIX_INDEXES)
def test_under_pressure_every_stream_is_the_naive_loops(index: str, preemption: str) -> None:
    runner = runner_of(index, **{
        "cache.hbm_budget_mib": pages(40), "scheduling.preemption": preemption,
        "tiers.dram_mib": 0.5, "scheduling.admit_whole_prompt": False,
    })  # fmt: skip
    shared = tokens(18)
    prompts = [shared[: 5 + 3 * at] + tokens(20, at) for at in range(5)]
    ids = [runner.add(prompt, 30) for prompt in prompts]
    runner.drain()
    assert runner.engine.metrics.num_preemptions > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert_naive(model(), prompt, runner.outputs[request_id])


@pytest.mark.parametrize("settings", [
    {"cache.k_format": "int8", "cache.v_format": "int4"},
    {"cache.k_format": "nvfp4", "cache.v_format": "fp8_e4m3_token", "cache.block_size": 16},
    {"cache.k_format": "turbo4", "cache.v_format": "turbo4", "cache.grouping": "head"},
])  # fmt: skip
def test_a_copied_beginning_holds_the_bytes_it_would_have_computed(
    settings: dict[str, Any],
) -> None:
    """Formats by token: the same prompt answers the same with a partial hit and without one."""
    runner = runner_of(**settings)
    size = runner.engine.config.cache.block_size
    shared = tokens(size + size // 2)
    alone = runner.one(shared + [252] * 9, 12, salt="alone")
    cached_tokens(runner, shared + [251] * 9)
    request_id = runner.add(shared + [252] * 9, 12)
    runner.step()
    assert runner.engine.requests[request_id].num_cached_tokens == len(shared)
    runner.drain()
    assert runner.outputs[request_id] == alone
