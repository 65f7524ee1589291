"""Sparse reads: chosen pages alone are read, bounds are never stale, nothing passes as exact."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.harness import Runner, build, model, tokens
from tests.structural.test_retention import _masked_logits
from workbench.config import EngineConfig, replace_settings
from workbench.engine.bounds_check import check_bounds
from workbench.engine.sparse_reads import SparseReads
from workbench.errors import IntegrityError, SettingError

QUEST: dict[str, Any] = {
    "retention.sparse": "quest", "retention.sparse_pages": 3, "retention.sparse_share": 0.0,
    "retention.sparse_dense_layers": 0, "retention.sink_tokens": 4, "cache.hbm_budget_mib": 1.0,
}  # fmt: skip


class Watch:
    """The pages that each call chose, and the logits of each step."""

    def __init__(self, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.picked: list[np.ndarray] = []
        self.logits: list[torch.Tensor] = []
        choose, stack = SparseReads._choose, runner.engine.stack
        run = stack.runner.run

        def chosen(*args: Any) -> torch.Tensor:
            picked = choose(*args)
            self.picked.append(picked.numpy())
            return picked

        def ran(*args: Any, **more: Any) -> Any:
            result = run(*args, **more)
            self.logits.append(result[0])
            return result

        monkeypatch.setattr(SparseReads, "_choose", chosen)
        monkeypatch.setattr(stack.runner, "run", ran)


@pytest.mark.parametrize("grouping", ["model", "layer", "head"])
@pytest.mark.parametrize("dense", [0, 1])
def test_a_token_attends_as_if_other_pages_were_masked(
    monkeypatch: pytest.MonkeyPatch, grouping: str, dense: int
) -> None:
    runner = Runner(build(QUEST | {"cache.grouping": grouping,
                                   "retention.sparse_dense_layers": dense}))  # fmt: skip
    prompt = tokens(40)
    request_id = runner.add(prompt, 3)
    runner.until(lambda: len(runner.outputs[request_id]) == 1)
    watch = Watch(runner, monkeypatch)
    runner.step()
    heads = model().arch.num_kv_heads
    visible = {(layer, head): list(range(40)) for layer in range(2) for head in range(heads)}
    assert len(watch.picked) == 2 - dense
    for layer, picked in enumerate(watch.picked, dense):
        assert picked.shape == (heads if grouping == "head" else 1, 1, 3)
        assert (picked[..., 0] == 0).all() and (picked[..., -1] == 10).all(), "sinks and the newest"
        for head in range(heads):
            pages = picked[head if grouping == "head" else 0, 0]
            slots = (pages[:, None] * 4 + np.arange(4)).ravel()
            visible[layer, head] = slots[slots < 40].tolist()
    wanted = _masked_logits(prompt + runner.outputs[request_id][:1], visible)
    torch.testing.assert_close(watch.logits[0][0], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("grouping", ["model", "head"])
def test_all_pages_read_is_the_dense_answer_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, grouping: str
) -> None:
    found = []
    for more in ({"retention.sparse_pages": 64}, {"retention.sparse_share": 1.0},
                 {"retention.sparse": "off"}):  # fmt: skip
        runner = Runner(build(QUEST | {"cache.grouping": grouping} | more))
        watch = Watch(runner, monkeypatch)
        for seed in range(3):
            runner.add(tokens(20 + 9 * seed, seed), 12)
        runner.drain()
        assert not watch.picked
        found.append(torch.cat(watch.logits))
        monkeypatch.undo()
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[2])


@pytest.mark.parametrize(
    "formats",
    ["fp32", "kivi4", "kvquant4"]
    + [
        pytest.param(name, marks=pytest.mark.long) for name in ("int4_rotated", "turbo3", "lowrank")
    ],
)
def test_bounds_follow_their_pages(formats: str) -> None:
    """Evictions, a swap, tiers, recomputation and a recode: the check after each step holds."""
    runner = Runner(build(QUEST | {
        "cache.k_format": formats, "cache.v_format": "int8", "cache.grouping": "layer",
        "retention.policy": "h2o", "retention.budget_tokens": 40, "retention.window_tokens": 8,
        "tiers.dram_mib": 1.0, "scheduling.preemption": "swap"}))  # fmt: skip
    ids = [runner.add(tokens(40)[: 40 - 8 * seed] + tokens(9, seed), 24) for seed in range(2)]
    runner.until(lambda: len(runner.outputs[ids[0]]) > 4)
    assert runner.engine.stack.runner.bounds is not None
    runner.engine.scheduler.preempt(runner.engine.requests[ids[0]], "test")
    runner.step(4)
    runner.engine.apply({"scheduling.preemption": "recompute"})
    runner.engine.scheduler.preempt(runner.engine.requests[ids[1]], "test")
    runner.step(4)
    runner.engine.apply({"cache.v_format": "bf16"})
    runner.step(3)
    runner.drain()
    assert all(len(runner.outputs[each]) == 24 for each in ids)


def test_bounds_follow_slots_that_are_packed_in_place() -> None:
    runner = Runner(build(QUEST | {
        "cache.grouping": "head", "retention.level": "token", "retention.policy": "h2o",
        "retention.budget_tokens": 24, "retention.window_tokens": 8,
        "cache.prefix_caching": False}))  # fmt: skip
    request_id = runner.add(tokens(40), 30)
    runner.drain()
    assert len(runner.outputs[request_id]) == 30


def test_a_stale_bound_is_found() -> None:
    runner = Runner(build(QUEST))
    runner.add(tokens(40), 8)
    runner.step(6)
    bounds = runner.engine.stack.runner.bounds
    assert bounds is not None
    with torch.inference_mode():
        bounds.tensor += 1
    assert "are not those of its keys" in runner.engine.check_integrity().message
    with pytest.raises(IntegrityError, match="bounds of block"):
        check_bounds(runner.engine)


def test_blocks_that_sparse_reads_shaped_are_never_indexed() -> None:
    runner = Runner(build(QUEST))
    prompt = tokens(40)
    first = runner.add(prompt, 30)
    runner.drain()
    assert len(runner.engine.stack.pool.index) == 10, "the prompt's alone"
    text = prompt + runner.outputs[first]
    again = runner.add(text, 2)
    runner.step()
    assert runner.engine.requests[again].num_cached_tokens == 40
    runner.drain()
    exact = Runner(build({"cache.hbm_budget_mib": 1.0}))
    exact.one(prompt, 30)
    assert len(exact.engine.stack.pool.index) == 17


def test_recomputation_after_a_preemption_reads_as_before() -> None:
    """Each row chooses its own pages, so that a chunk of them gives what single steps gave."""
    alone = Runner(build(QUEST)).one(tokens(40), 24)
    runner = Runner(build(QUEST | {"cache.prefix_caching": False}))
    request_id = runner.add(tokens(40), 24)
    runner.until(lambda: len(runner.outputs[request_id]) == 17)
    runner.engine.scheduler.preempt(runner.engine.requests[request_id], "test")
    runner.drain()
    assert runner.outputs[request_id] == alone


def test_traffic_is_counted_and_charged() -> None:
    runner = Runner(build(QUEST | {"retention.sparse_dense_layers": 1}))
    request_id = runner.add(tokens(40), 8)
    runner.until(lambda: len(runner.outputs[request_id]) == 3)
    traffic = runner.engine.stack.runner.timing.traffic
    page = 4 * 2 * 16 * 4 * 2  # slots, heads, channels, fp32, K and V
    assert (traffic.pages_read, traffic.pages_skipped) == (11 + 3, 11 - 3)
    assert traffic.read_bytes == 14 * page and traffic.whole_bytes == 11 * page
    assert traffic.bounds_bytes == 10 * 2 * 2 * 16 * 2
    assert traffic.bytes_per_token == 14 * page + traffic.bounds_bytes
    numbers = runner.engine.metrics.numbers()
    assert 0 < numbers["pages_skipped"].value < 100 and numbers["read_mib"].value > 0
    bounds = runner.engine.stack.runner.bounds
    lines = {line.name: line.num_bytes for line in runner.engine.snapshot().ledger}
    assert bounds is not None
    assert lines["page_bounds"] == bounds.num_bytes == bounds.tensor.untyped_storage().nbytes()
    runner.engine.apply({"retention.sparse": "off"})
    runner.step()
    assert runner.engine.stack.runner.bounds is None
    runner.drain()


def test_mass_lies_on_pages_that_were_read() -> None:
    runner = Runner(build(QUEST | {"cache.grouping": "head", "retention.policy": "h2o",
                                   "retention.budget_tokens": 100}))  # fmt: skip
    other = runner.add(tokens(9, 5), 20)  # reads whole beside it
    request_id = runner.add(tokens(40), 8)
    runner.until(lambda: len(runner.outputs[request_id]) == 3)
    recent = runner.engine.retainer.observers[request_id].recent[:, :42]
    np.testing.assert_allclose(recent.sum(1), 1, rtol=1e-4)
    pages = (recent[:, :40].reshape(len(recent), 10, 4).sum(-1) > 0).sum(1)
    assert (pages <= 2).all(), "two of the full pages, and the newest"
    short = runner.engine.retainer.observers[other].recent
    np.testing.assert_allclose(short.sum(1), 1, rtol=1e-4)
    runner.drain()


def test_positions_that_move_are_refused() -> None:
    with pytest.raises(SettingError, match="retention.positions = compact moves them"):
        replace_settings(EngineConfig(), QUEST | {"retention.positions": "compact"})
