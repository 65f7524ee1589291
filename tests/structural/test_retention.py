"""Retention: pages are really freed, positions stay, what was computed since is not shared."""

import numpy as np
import pytest
import torch
from kvkernels.pages import decode_pages

from tests.engine.harness import Runner, build, model, pages, tokens
from workbench.cache.retention import StoredTokens
from workbench.config import RetentionSettings
from workbench.errors import CapacityError
from workbench.settings.cache import GROUPINGS
from workbench.settings.retention import RETENTION_POLICIES
from workbench.structural.retention.observer import MassObserver
from workbench.structural.retention.policies import AttentionMass, SinkWindow
from workbench.structural.retention.selection import pages_to_drop, slots_to_keep

POLICIES = [name for name in RETENTION_POLICIES if name != "none"]


def kept(policy: str, budget: int = 32, **more: object) -> dict[str, object]:
    return {"retention.policy": policy, "retention.budget_tokens": budget,
            "retention.sink_tokens": 4, "retention.window_tokens": 12} | more  # fmt: skip


@pytest.mark.parametrize("level", ["page", "token"])
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("policy", POLICIES)
def test_budget_holds_and_pages_are_really_freed(policy: str, grouping: str, level: str) -> None:
    runner = Runner(build(kept(policy) | {
        "cache.grouping": grouping, "cache.prefix_caching": False, "scheduling.chunk_tokens": 8,
        "retention.level": level}))  # fmt: skip
    request_id = runner.add(tokens(20), 120)
    manager, pool = runner.engine.stack.manager, runner.engine.stack.pool
    while runner.engine.has_work():
        runner.step()
        blocks = manager.requests.get(request_id)
        if blocks is None:
            break
        groups = len(manager.classes)
        assert (blocks.stored_len <= 32 + 4).all()
        assert int((pool.ref_cnt > 0).sum()) == int(blocks.num_pages.sum()) <= 9 * groups
    assert len(runner.outputs[request_id]) == 120


@pytest.mark.parametrize("policy", POLICIES)
def test_positions_stay_and_sinks_and_window_are_protected(policy: str) -> None:
    runner = Runner(build(kept(policy)))
    request_id = runner.add(tokens(20), 80)
    runner.step(60)
    request = runner.engine.requests[request_id]
    blocks = runner.engine.stack.manager.requests[request_id]
    stored = blocks.positions(0)
    assert set(range(4)) <= set(stored.tolist()), "sinks"
    assert set(range(request.num_computed_tokens - 8, request.num_computed_tokens)) <= set(
        stored.tolist()
    ), "window"
    evicted = runner.engine.retainer.observers[request_id].evicted[0]
    assert set(np.flatnonzero(evicted)) == set(range(request.num_computed_tokens)) - set(
        stored.tolist()
    )
    runner.drain()


@pytest.mark.parametrize(
    "grouping, level, split",
    [("model", "page", "uniform"), ("model", "token", "uniform"), ("layer", "token", "pyramid"),
     ("head", "token", "ada"), ("head", "token", "ada+pyramid"), ("head", "page", "ada")],
)  # fmt: skip
@pytest.mark.parametrize("policy", ["sink+window", "attention-mass"])
def test_kept_tokens_attend_as_if_the_rest_were_masked(
    policy: str, grouping: str, level: str, split: str
) -> None:
    """The step after an eviction equals full attention with the evicted positions masked out."""
    runner = Runner(build(kept(policy, 16, **{
        "scheduling.chunk_tokens": 64, "scheduling.token_budget": 64, "cache.grouping": grouping,
        "retention.level": level, "retention.split": split,
        "retention.window_tokens": 4})))  # fmt: skip
    prompt = tokens(40)
    request_id = runner.add(prompt, 2)
    runner.step()  # the whole prompt, then the eviction
    stack = runner.engine.stack
    blocks = stack.manager.requests[request_id]
    visible: dict[tuple[int, int], list[int]] = {}  # layer and KV head -> positions
    for group in stack.geometry.groups:
        for layer in group.layers:
            for head in group.kv_heads:
                visible[layer, head] = blocks.positions(group.index).tolist()
    different = {tuple(positions) for positions in visible.values()}
    assert all(len(positions) < 40 for positions in different)
    assert (len(different) > 1) == (grouping != "model" and (policy, split) != SAME)
    logits = []
    run = stack.runner.run
    stack.runner.run = lambda *args, **more: logits.append(run(*args, **more)) or logits[-1]
    runner.step()
    token = runner.outputs[request_id][0]
    wanted = _masked_logits(prompt + [token], visible)
    torch.testing.assert_close(logits[0][0][0], wanted, atol=1e-4, rtol=1e-4)


SAME = ("sink+window", "ada")  # every head scores alike


def _masked_logits(text: list[int], visible: dict[tuple[int, int], list[int]]) -> torch.Tensor:
    """Logits of the last token when it sees only `visible` and itself; the others see all."""
    loaded = model()
    decoder, count = loaded.decoder, len(text)
    share = loaded.arch.num_heads // loaded.arch.num_kv_heads

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(count, count, dtype=torch.bool).tril().repeat(q.shape[1], 1, 1)
        mask[:, -1] = False
        for head in range(q.shape[1]):
            mask[head, -1, [*visible[layer, head // share], count - 1]] = True
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=True
        )
        return out[0].transpose(0, 1).flatten(1)

    with torch.inference_mode():
        rows = torch.arange(count)
        return decoder.forward(torch.tensor(text), rows, attend, torch.tensor([count - 1]))[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_computed_after_an_eviction_is_indexed(policy: str) -> None:
    runner = Runner(build(kept(policy, **{"scheduling.chunk_tokens": 20})))
    prompt = tokens(20)
    request_id = runner.add(prompt, 80)
    runner.drain()
    text = prompt + runner.outputs[request_id]
    indexed = len(runner.engine.stack.pool.index)
    assert indexed <= 9, "only what was computed before the first eviction"
    probe = runner.add(text[:60], 1)
    runner.step()
    assert (
        runner.engine.finished[probe].num_cached_tokens <= 36
        if probe in (runner.engine.finished)
        else runner.engine.requests[probe].num_cached_tokens <= 36
    )
    runner.drain()


def test_earlier_rows_are_still_hit_by_others() -> None:
    runner = Runner(build(kept("sink+window", 16)))
    prompt = tokens(15)
    first = runner.add(prompt, 60)
    runner.step(40)
    assert runner.engine.retainer.observers[first].num_evicted > 0
    other = runner.add(prompt, 4)
    runner.step()
    assert runner.engine.requests[other].num_cached_tokens == 12
    runner.drain()


def test_an_eviction_takes_a_shared_page_from_its_own_table_only() -> None:
    runner = Runner(build(kept("sink+window", 16)))
    prompt = tokens(15)
    ids = [runner.add(prompt, 40)]
    runner.step(2)
    ids.append(runner.add(prompt, 3, priority=1))
    runner.drain()
    alone = Runner(build(kept("sink+window", 16))).one(prompt, 3)
    assert runner.outputs[ids[1]] == alone


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_evictions_after_a_preemption(preemption: str) -> None:
    """A swapped request comes back without its evicted pages, a recomputed one with all."""
    runner = Runner(build(kept("sink+window", 24) | {
        "cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 0.5,
        "scheduling.preemption": preemption}))  # fmt: skip
    runner.add(tokens(20), 10)
    request_id = runner.add(tokens(20, 1), 60)
    runner.step(30)
    request = runner.engine.requests[request_id]
    gone = runner.engine.retainer.observers[request_id].num_evicted
    assert gone > 0
    runner.engine.scheduler.preempt(request, "test")
    runner.check()
    runner.until(lambda: request.status.value == "running")
    blocks = runner.engine.stack.manager.requests[request_id]
    evicted = runner.engine.retainer.observers[request_id].num_evicted
    assert evicted == request.num_computed_tokens - int(blocks.stored_len[0])
    if preemption == "swap":
        assert evicted >= gone
    runner.drain()
    assert len(runner.outputs[request_id]) == 60


@pytest.mark.parametrize(
    "policy, window, steps, hit",
    [("snapkv", 8, [16, 32, 37, 45], 36), ("snapkv", 24, [16, 21, 37, 45], 20),
     ("tova", 8, [16, 32, 44, 45], 44), ("h2o", 8, [16, 32, 45], 0)],
)  # fmt: skip
def test_the_last_steps_of_a_prompt_are_the_policys_window(
    policy: str, window: int, steps: list[int], hit: int
) -> None:
    """A window longer than a chunk takes several; H2O leaves 64 queries to observe."""
    runner = Runner(build(kept(policy, 64, **{"retention.window_tokens": window})))
    prompt = tokens(45)
    for text in (prompt, prompt):  # the second finds most of the first's pages
        request_id = runner.add(text, 2)
        done = []
        while not runner.outputs[request_id]:
            runner.step()
            done.append(runner.engine.requests[request_id].num_computed_tokens)
        assert done == [at for at in steps if at >= done[0]], policy
        runner.drain()
    assert runner.engine.finished[request_id].num_cached_tokens == hit


def test_switching_retention_off_must_not_lose_a_request() -> None:
    runner = Runner(build(kept("sink+window", 32) | {"cache.hbm_budget_mib": pages(32)}))
    request_id = runner.add(tokens(20), 180)
    runner.step(150)
    with pytest.raises(CapacityError, match="request 1 would need .* blocks and the whole pool"):
        runner.engine.apply({"retention.policy": "none"})
    runner.drain()
    assert len(runner.outputs[request_id]) == 180


def test_a_longer_chunk_must_not_lose_a_request() -> None:
    """Recomputed after a preemption, it would store a whole chunk besides its budget."""
    runner = Runner(build(kept("sink+window", 32) | {"cache.hbm_budget_mib": pages(32)}))
    request_id = runner.add(tokens(20), 180)
    runner.step(150)
    with pytest.raises(
        CapacityError, match="request 1 would need .* blocks and the whole pool has"
    ):
        runner.engine.apply({"scheduling.chunk_tokens": 256, "scheduling.token_budget": 256})
    assert runner.engine.config.scheduling.chunk_tokens == 16
    runner.engine.scheduler.preempt(runner.engine.requests[request_id], "test")
    runner.drain()
    assert len(runner.outputs[request_id]) == 180


def test_a_kept_set_costs_what_it_leaves_out() -> None:
    """Shadow KL: exactly 0 while everything is kept; with a budget, above 0."""
    cost = {}
    for budget in (16, 128):
        runner = Runner(build(kept("attention-mass", budget)))
        request_id = runner.add(tokens(40), 30)
        runner.engine.start_shadow(request_id)
        runner.drain()
        cost[budget] = runner.engine.shadow.view().kl_mean
    assert cost[128] == 0.0 < cost[16]


def stored(positions: list[int], rates: list[float], num_tokens: int) -> StoredTokens:
    rate = np.array(rates)
    return StoredTokens(np.array(positions), rate, rate, rate, num_tokens, 4)


def settings(**more: object) -> RetentionSettings:
    values = {"policy": "none", "budget_tokens": 16, "sink_tokens": 4, "window_tokens": 4} | more
    return RetentionSettings(**values)


def test_pages_with_the_lowest_mean_go() -> None:
    pages = [9.0, 0.3, 0.1, 0.2, 0.4, 0.0]
    at = stored(list(range(24)), np.repeat(pages, 4).tolist(), 24)
    assert pages_to_drop(at, SinkWindow().score(at, settings()), settings(), 16) == [1, 2]
    assert pages_to_drop(at, AttentionMass().score(at, settings()), settings(), 16) == [2, 3]


def test_tokens_with_the_lowest_scores_go_once_a_page_comes_free() -> None:
    rates = [0.0] * 4 + [float(at % 7) for at in range(4, 20)] + [0.0] * 4
    at = stored(list(range(24)), rates, 24)
    kept = slots_to_keep(at, at.rate, settings(), 16)
    open_slots = sorted(range(4, 20), key=lambda slot: -rates[slot])[:8]
    assert kept.tolist() == sorted([0, 1, 2, 3, *open_slots, 20, 21, 22, 23])
    assert slots_to_keep(at, at.rate, settings(), 21) is None, "no page would come free"


def test_sinks_and_window_outweigh_the_budget() -> None:
    wide = settings(sink_tokens=16, window_tokens=12)
    at = stored(list(range(28)), [0.0] * 28, 28)
    assert pages_to_drop(at, at.rate, wide, 16) == []
    assert slots_to_keep(at, at.rate, wide, 16) is None


def test_age_is_no_advantage() -> None:
    """A rate is mass per query that could see the token."""
    observer = MassObserver(1, 16)
    observer.observe(np.arange(8)[None], np.array([8]), np.full((1, 8), 0.5), 4)
    assert observer.seen[0, :8].tolist() == [4, 4, 4, 4, 4, 3, 2, 1]
    assert observer.rate(0, 8)[7] == pytest.approx(0.5)
    assert observer.rate(0, 8)[0] == pytest.approx(0.125)
    assert observer.kept_share() == 1.0
    observer.mark_evicted(0, np.arange(4))
    assert observer.num_evicted == 4
    assert observer.kept_share() == pytest.approx(1 - 0.5 / observer.rate(0, 8).sum())


@pytest.mark.parametrize("grouping", ["model", "head"])
def test_key_norm_keeps_the_shortest_keys(grouping: str) -> None:
    """The kept slots of each group are those whose keys, read back from the pages, are shortest."""
    runner = Runner(build(kept("key-norm", 20, **{
        "cache.grouping": grouping, "retention.level": "token", "retention.when": "prefill",
        "scheduling.chunk_tokens": 64, "scheduling.token_budget": 64})))  # fmt: skip
    prompt = tokens(60)
    full = Runner(build({"cache.grouping": grouping, "scheduling.chunk_tokens": 64,
                         "scheduling.token_budget": 64}))  # fmt: skip
    request_id, other = runner.add(prompt, 2), full.add(prompt, 2)
    runner.step()
    full.step()
    stack = full.engine.stack
    for group, spec in enumerate(stack.specs.full):
        blocks = stack.manager.requests[other].blocks(group)
        pages = stack.store.gather(stack.pool.offset[blocks], spec)
        keys = decode_pages(pages, spec, "k", stack.store.state(group, spec))  # [n, L, H, S, D]
        norms = keys.norm(dim=-1).mean((1, 2)).flatten()[:60].numpy()
        wanted = set(range(4)) | set(range(48, 60))
        middle = sorted(range(4, 48), key=lambda at: norms[at])[: 20 - len(wanted)]
        found = runner.engine.stack.manager.requests[request_id].positions(group)
        assert set(found.tolist()) == wanted | set(middle)


def test_key_norm_takes_no_prefix_it_has_not_seen() -> None:
    runner = Runner(build(kept("key-norm", 128)))
    first = runner.one(tokens(30), 4)
    second = runner.add(tokens(30), 4)
    runner.step()
    assert runner.engine.requests[second].num_cached_tokens == 0
    runner.drain()
    assert runner.outputs[second] == first
