"""A basis of a request's own keys: made once its prompt is there, private, gone with it."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.harness import Runner, assert_idle, assert_naive, build, model, tokens
from workbench.engine.views.ledger import ledger
from workbench.errors import SettingError

SIZE = 4
GROUPINGS = ("model", "layer", "head")


def own(rank: int = 8, **more: Any) -> dict[str, Any]:
    return {"cache.k_format": "lowrank", "cache.rank": rank, "cache.basis": "sequence",
            "cache.hbm_budget_mib": 0.5, **more}  # fmt: skip


def kinds(runner: Runner, request_id: str, group: int = 0) -> list[tuple[str, int]]:
    """Format of K and basis of each full page."""
    pool, manager = runner.engine.stack.pool, runner.engine.stack.manager
    blocks = manager.requests[request_id]
    table = blocks.table[group, : int(blocks.stored_len[group]) // blocks.block_size]
    return [(pool.classes[pool.page_class(int(block))].k_format, int(pool.basis[block]))
            for block in table]  # fmt: skip


class Keys:
    """Every key as it was projected, of the only request: fp64 [T, Hkv, D] a layer."""

    def __init__(self, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layers: dict[int, list[torch.Tensor]] = {}
        forward = runner.engine.model.decoder.forward

        def watched(tokens: Any, positions: Any, attend: Any, *rest: Any, **more: Any) -> Any:
            def seen(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                self.layers.setdefault(layer, []).append(k.double().clone())
                return attend(layer, q, k, v)

            return forward(tokens, positions, seen, *rest, **more)

        monkeypatch.setattr(runner.engine.model.decoder, "forward", watched)

    def of(self, layer: int) -> torch.Tensor:
        return torch.cat(self.layers[layer])


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("chunk", [64, 7])
def test_prompts_wait_exactly_and_are_then_projected_on_their_own_directions(
    grouping: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again by numpy's SVD in float64, of each layer and head, of the prompt's keys alone."""
    runner = Runner(build(own(8, **{"cache.grouping": grouping, "scheduling.chunk_tokens": chunk,
                                    "scheduling.token_budget": 64})))  # fmt: skip
    keys = Keys(runner, monkeypatch)
    request_id = runner.add(tokens(50), 20)
    while not runner.outputs[request_id]:
        assert not runner.engine.stack.store.bases
        if request_id in runner.engine.stack.manager.requests:
            assert {kind for kind, _ in kinds(runner, request_id)} <= {"fp32"}
        runner.step()
    stack = runner.engine.stack
    number = stack.manager.requests[request_id].basis
    assert list(stack.store.bases) == [number]
    for group, each in enumerate(stack.geometry.groups):
        assert set(kinds(runner, request_id, group)) == {("lowrank", number)}
        table = stack.manager.requests[request_id].table[group, : 50 // SIZE]
        spec = stack.specs.full[group]
        held = stack.store.vectors(group, stack.pool.offset[table], spec, "k", number)
        for at, layer in enumerate(each.layers):
            for place, head in enumerate(each.kv_heads):
                wanted = keys.of(layer)[:50, head].numpy()
                mean = wanted.mean(0)
                rows = np.linalg.svd(wanted - mean)[2][:8]
                best = (wanted - mean) @ rows.T @ rows + mean
                got = held[:, at, place].double().numpy()
                assert np.abs(got - best[: len(got)]).max() < 5e-3
    runner.step(12)
    assert set(kinds(runner, request_id)) == {("lowrank", number)}, "what follows is sealed too"
    assert stack.manager.requests[request_id].basis == number
    runner.drain()
    assert not stack.store.bases


def test_several_requests_have_a_basis_each_and_answer_as_alone() -> None:
    prompts = [tokens(40 + 9 * seed, seed) for seed in range(3)]
    alone = [Runner(build(own(12))).one(prompt, 12) for prompt in prompts]
    runner = Runner(build(own(12, **{"scheduling.token_budget": 64})))
    ids = [runner.add(prompt, 12) for prompt in prompts]
    runner.until(lambda: all(runner.outputs[each] for each in ids[:2]))
    bases = runner.engine.stack.store.bases
    assert len(bases) >= 2
    runner.drain()
    found = [runner.outputs[each] for each in ids]
    same = np.mean([a == b for one, other in zip(found, alone, strict=True)
                    for a, b in zip(one, other, strict=True)])  # fmt: skip
    assert same > 0.9, "a product of another shape may round otherwise"


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_a_full_rank_is_the_exact_cache(grouping: str) -> None:
    runner = Runner(build(own(16, **{"cache.grouping": grouping})))
    for seed in range(2):
        prompt = tokens(40, seed)
        runner_output = runner.one(prompt, 20)
        matches = runner_output == Runner(build()).one(prompt, 20)
        assert matches, "fp16 coordinates turn no token of these"


def test_it_keeps_more_of_its_keys_than_a_calibrated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {}
    for basis in ("calibrated", "sequence"):
        runner = Runner(build(own(8, **{"cache.basis": basis})))
        keys = Keys(runner, monkeypatch)
        request_id = runner.add(tokens(60), 4)
        runner.until(lambda r=runner, i=request_id: r.outputs[i])
        stack = runner.engine.stack
        blocks = stack.manager.requests[request_id]
        spec, table = stack.specs.full[0], blocks.table[0, : 60 // SIZE]
        held = stack.store.vectors(0, stack.pool.offset[table], spec, "k", blocks.basis)
        wanted = keys.of(0)[:60]
        lost[basis] = float((held[:, 0].double() - wanted).square().sum())
        runner.drain()
        monkeypatch.undo()
    assert lost["sequence"] < 0.9 * lost["calibrated"]


def test_short_prompts_wait_for_enough_tokens() -> None:
    """Two for each number of a vector: 32 of the random model's."""
    runner = Runner(build(own(8)))
    request_id = runner.add(tokens(5), 40)
    runner.until(lambda: runner.engine.requests[request_id].num_computed_tokens >= 31)
    assert not runner.engine.stack.store.bases
    runner.step(2)
    assert set(kinds(runner, request_id)) == {("lowrank", 1)}
    runner.drain()


def test_bytes_of_the_basis_are_counted_and_nothing_is_shared() -> None:
    runner = Runner(build(own(8)))
    engine = runner.engine
    prompt = tokens(50)

    def line() -> int:
        lines = {each.name: each.num_bytes for each in ledger(engine)[0]}
        return lines["calibration"]

    runner.one(tokens(40, 9), 2)  # what requests share is there from now on
    before = line()
    first = runner.add(prompt, 20)
    runner.until(lambda: runner.outputs[first])
    own_bytes = line() - before
    arch = model().arch
    assert own_bytes == arch.num_layers * arch.num_kv_heads * (1 + 8) * arch.head_dim * 4
    second = runner.add(prompt, 20)
    runner.until(lambda: runner.outputs[second])
    assert engine.requests[second].num_cached_tokens == 0 and not len(engine.stack.pool.index)
    assert line() == before + 2 * own_bytes
    engine.abort(first)
    runner.step()
    assert line() == before + own_bytes
    runner.drain()
    assert line() == before and "/bown" in engine.stack.manager.keys.format_label


@pytest.mark.parametrize("more", [
    {"cache.rank_heads": 2, "cache.rank": 16}, {"cache.k_format": "lowrank_int4"},
    {"cache.residual_tokens": 9, "cache.outlier_pages": 1, "cache.sink_tokens": 5},
    {"cache.values": "dram", "tiers.dram_mib": 1.0},
    {"retention.sparse": "landmarks", "cache.grouping": "head", "retention.sparse_pages": 3,
     "retention.sparse_share": 0.0, "retention.sparse_dense_layers": 0, "cache.outlier_pages": 1},
    {"retention.sparse": "quest", "retention.sparse_pages": 3, "retention.sparse_share": 0.0},
    {"retention.policy": "snapkv", "retention.budget_tokens": 32, "cache.grouping": "head",
     "retention.sink_tokens": 4, "retention.window_tokens": 16},
    {"retention.policy": "h2o", "retention.budget_tokens": 24, "cache.grouping": "head",
     "retention.split": "ada", "retention.sink_tokens": 2, "retention.window_tokens": 4,
     "scheduling.chunk_tokens": 8},
    {"retention.policy": "expected-attention", "retention.budget_tokens": 32},
    {"retention.positions": "compact", "retention.policy": "sink+window",
     "retention.budget_tokens": 32, "retention.window_tokens": 16, "retention.sink_tokens": 4},
    {"cache.layer_plan": "0=int4/int8", "cache.grouping": "layer"},
    {"scheduling.preemption": "swap", "tiers.dram_mib": 0.5},
    {"cache.rank_plan": "0=4", "cache.grouping": "layer", "cache.v_format": "kivi4"},
])  # fmt: skip
def test_it_goes_with(more: dict[str, Any]) -> None:
    runner = Runner(build(own(8, **({"scheduling.token_budget": 64} | more))))
    ids = [runner.add(tokens(40 + 5 * seed, seed), 24) for seed in range(3)]
    runner.step(12)
    engine = runner.engine
    running = next(iter(engine.scheduler.running))
    engine.scheduler.preempt(running, "test")
    runner.check()
    runner.drain()
    assert not any(runner.errors.values()) and not engine.stack.store.bases
    assert all(len(runner.outputs[each]) == 24 for each in ids)
    engine.close()


def test_a_budget_that_holds_the_exact_prompt_alone_is_enough() -> None:
    """Nothing was taken for sealed pages beforehand, so none may be missing."""
    config = own(8, **{"cache.hbm_budget_mib": 0.0625, "scheduling.admit_whole_prompt": False})
    runner = Runner(build(config))
    limit = runner.engine.stack.manager.capacity_pages * SIZE
    assert limit > 32
    ids = [runner.add(tokens(limit - 12, seed), 11) for seed in range(3)]
    runner.drain()
    assert all(len(runner.outputs[each]) == 11 for each in ids), runner.errors
    assert_idle(runner.engine)


def test_it_is_switched_live_and_no_request_is_lost() -> None:
    runner = Runner(build(own(8)))
    request = runner.add(tokens(40), 60)
    runner.step(8)
    for changes in (
        {"cache.rank": 12}, {"cache.basis": "calibrated"}, {"cache.basis": "sequence"},
        {"cache.rank_heads": 2, "cache.rank": 16}, {"cache.k_format": "fp32"},
        {"cache.k_format": "lowrank"},
    ):  # fmt: skip
        assert "rebuild" in runner.engine.apply(changes).kinds.values()
        runner.step(8)
    runner.drain()
    assert len(runner.outputs[request]) == 60


def test_without_low_rank_it_changes_nothing() -> None:
    runner = Runner(build({"cache.basis": "sequence"}))
    prompt = tokens(30)
    assert_naive(model(), prompt, runner.one(prompt, 12))
    assert len(runner.engine.stack.pool.index) > 0


REFUSED = [
    ({"cache.v_format": "lowrank"}, "cache.basis = sequence makes a basis of a request's keys, and "
     "V has none, so cache.v_format cannot be lowrank: choose another, or cache.basis = "),
    ({"retention.level": "token"}, "so retention.level cannot be token: choose page"),
    ({"cache.mode": "off"}, "so cache.mode cannot be off: choose on"),
    ({"cache.allocation": "contiguous"}, "so cache.allocation cannot be contiguous: choose paged"),
    ({"cache.basis": "other"}, "cache.basis = 'other' is not allowed: choose one of calibrated, "),
]  # fmt: skip


@pytest.mark.parametrize("changes, sentence", REFUSED)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    engine = build(own(8))
    before = engine.config
    with pytest.raises(SettingError) as error:
        engine.apply(changes)
    assert sentence in str(error.value) and engine.config is before
