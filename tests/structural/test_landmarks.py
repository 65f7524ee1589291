"""Landmarks: pages are chosen by their mean key, K low-rank in HBM, V in DRAM (ShadowKV)."""

from typing import Any

import numpy as np
import pytest
import torch
from kvkernels.common import rotate

from tests.engine.harness import Runner, build, model, tokens
from tests.structural.test_sparse import Watch
from workbench.engine.sparse_reads import SparseReads

SIZE = 4
SHADOW: dict[str, Any] = {
    "cache.k_format": "lowrank", "cache.values": "dram", "tiers.dram_mib": 1.0,
    "retention.sparse": "landmarks", "retention.sparse_pages": 3, "retention.sparse_share": 0.0,
    "retention.sparse_dense_layers": 0, "retention.sink_tokens": 0, "cache.hbm_budget_mib": 1.0,
    "cache.grouping": "head",
}  # fmt: skip


def test_the_pages_with_the_largest_share_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again in float64: mean of the rotated keys, softmax over pages, the best head counts."""
    runner = Runner(build(SHADOW))
    engine, seen = runner.engine, []
    choose = SparseReads._choose

    def chosen(self: Any, rows: Any, local: int, q: torch.Tensor, positions: np.ndarray) -> Any:
        picked = choose(self, rows, local, q, positions)
        seen.append((rows, local, q.double(), positions[self.rows], picked))
        return picked

    monkeypatch.setattr(SparseReads, "_choose", chosen)
    request_id = runner.add(tokens(41), 3)
    runner.until(lambda: len(runner.outputs[request_id]) == 2)
    arch, stack = model().arch, engine.stack
    share = arch.num_heads // arch.num_kv_heads
    assert len(seen) >= 2
    for layer, (rows, local, q, positions, picked) in enumerate(seen[:2]):
        cos, sin = (part.double() for part in stack.runner.rope_table)
        query = rotate(q, cos[positions][:, None], sin[positions][:, None])[0]
        newest = int(rows.pages[0, 0]) - 1
        for head in range(arch.num_kv_heads):
            group = layer * arch.num_kv_heads + head
            blocks = rows.table[head, 0, :newest]
            spec = stack.specs.full[group]
            assert {stack.pool.page_class(int(block)) for block in blocks} == {
                stack.manager.classes[group]
            }
            keys = stack.store.vectors(group, stack.pool.offset[blocks], spec, "k")[:, local, 0]
            at = torch.arange(newest * SIZE)
            landmarks = rotate(keys.double(), cos[at], sin[at]).unflatten(0, (newest, SIZE)).mean(1)
            scores = query[head * share : (head + 1) * share] @ landmarks.T * arch.head_dim**-0.5
            best = torch.softmax(scores, -1).amax(0)
            wanted = sorted(best.topk(2).indices.tolist()) + [newest]
            assert picked[head, 0].tolist() == wanted or _near(best, picked[head, 0][:2])
    runner.drain()


def _near(best: torch.Tensor, picked: np.ndarray) -> bool:
    """Whether bf16 landmarks may well have put these in front."""
    return bool(best[torch.from_numpy(picked)].min() > 0.97 * best.topk(2).values.min())


def test_all_pages_chosen_is_the_dense_low_rank_answer_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for more in (
        {"retention.sparse_pages": 64}, {"retention.sparse_share": 1.0},
        {"retention.sparse": "off"}, {"retention.sparse": "off", "cache.values": "hbm"},
    ):  # fmt: skip
        runner = Runner(build(SHADOW | more))
        watch = Watch(runner, monkeypatch)
        ids = [runner.add(tokens(20 + 9 * seed, seed), 12) for seed in range(3)]
        runner.drain()
        found.append((torch.cat(watch.logits), [runner.outputs[each] for each in ids]))
        monkeypatch.undo()
    for logits, outputs in found[:3]:
        assert torch.equal(logits, found[3][0]) and outputs == found[3][1]


def test_only_the_values_of_chosen_pages_are_fetched() -> None:
    fetched = {}
    for name in ("off", "landmarks"):
        runner = Runner(build(SHADOW | {"retention.sparse": name}))
        request_id = runner.add(tokens(60), 8)
        runner.until(lambda r=runner, i=request_id: len(r.outputs[i]) == 4)
        timing = runner.engine.stack.runner.timing
        fetched[name] = timing.traffic.fetched_bytes
        scratch = runner.engine.stack.runner.split
        assert scratch is not None and scratch.scratch.bytes > 0
        runner.drain()
    pages = 15 if (60 + 3) % SIZE else 16
    each = fetched["off"] // (pages * 4)  # two layers and two KV heads
    assert fetched["off"] == pages * 4 * each
    assert fetched["landmarks"] == 2 * 4 * each, "the newest page has its values in HBM"


def test_pages_that_wait_exactly_are_always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(build(SHADOW | {"cache.residual_tokens": 7, "retention.sparse_pages": 5}))
    watch = Watch(runner, monkeypatch)
    request_id = runner.add(tokens(61), 6)
    runner.until(lambda: len(runner.outputs[request_id]) == 4)
    assert watch.picked
    for picked in watch.picked:
        newest = picked.max()
        assert (picked[..., -3:] == newest - np.array([2, 1, 0])).all()
    runner.drain()


def test_a_landmark_is_half_of_two_bounds_and_follows_its_page() -> None:
    sizes = {}
    for name in ("quest", "landmarks"):
        runner = Runner(build(SHADOW | {"retention.sparse": name}))
        runner.add(tokens(40), 8)
        runner.step(6)
        bounds = runner.engine.stack.runner.bounds
        assert bounds is not None and bounds.num_bytes == bounds.tensor.untyped_storage().nbytes()
        sizes[name] = bounds.num_bytes
    assert sizes["quest"] == 2 * sizes["landmarks"]
    with torch.inference_mode():
        bounds.tensor += 1
    assert "are not those of its keys" in runner.engine.check_integrity().message


def test_it_is_switched_live() -> None:
    runner = Runner(build(SHADOW | {"retention.sparse": "quest"}))
    request_id = runner.add(tokens(40), 30)
    for name in ("landmarks", "off", "landmarks", "quest"):
        runner.step(5)
        assert set(runner.engine.apply({"retention.sparse": name}).kinds.values()) == {"hot"}
    runner.drain()
    assert len(runner.outputs[request_id]) == 30
    assert all(row.page < 10 for row in runner.engine.stack.pool.index.rows()), "only the prompt's"
