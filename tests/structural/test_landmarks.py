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
    "retention.sparse_outliers": 0, "cache.grouping": "head",
}  # fmt: skip


@pytest.mark.parametrize("num_outliers", [0, 2])
def test_outliers_and_the_pages_with_the_largest_share_are_read(
    monkeypatch: pytest.MonkeyPatch, num_outliers: int
) -> None:
    """Again in float64: mean of the rotated keys, softmax over pages, the best head counts.

    First the pages with the least cosine of a key to the mean, which are no part of the softmax.
    """
    runner = Runner(build(SHADOW | {"retention.sparse_outliers": num_outliers}))
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
            paged = rotate(keys.double(), cos[at], sin[at]).unflatten(0, (newest, SIZE))
            landmarks = paged.mean(1)
            least = torch.cosine_similarity(paged, landmarks[:, None], dim=-1).amin(1)
            outliers = least.argsort()[:num_outliers].tolist()
            scores = query[head * share : (head + 1) * share] @ landmarks.T * arch.head_dim**-0.5
            scores[:, outliers] = float("-inf")
            best = torch.softmax(scores, -1).amax(0)
            found = picked[head, 0].tolist()
            assert len(found) == 3 + num_outliers and {newest, *outliers} <= set(found)
            chosen = [page for page in found if page not in {newest, *outliers}]
            assert chosen == sorted(best.topk(2).indices.tolist()) or _near(best, chosen)
    runner.drain()


def _near(best: torch.Tensor, picked: list[int]) -> bool:
    """Whether bf16 landmarks may well have put these in front."""
    return bool(best[picked].min() > 0.97 * best.topk(2).values.min())


def test_all_pages_chosen_is_the_dense_low_rank_answer_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for more in (
        {"retention.sparse_pages": 64}, {"retention.sparse_share": 1.0},
        {"retention.sparse_outliers": 64}, {"retention.sparse": "off"},
        {"retention.sparse": "off", "cache.values": "hbm"},
    ):  # fmt: skip
        runner = Runner(build(SHADOW | more))
        watch = Watch(runner, monkeypatch)
        ids = [runner.add(tokens(20 + 9 * seed, seed), 12) for seed in range(3)]
        runner.drain()
        found.append((torch.cat(watch.logits), [runner.outputs[each] for each in ids]))
        monkeypatch.undo()
    for logits, outputs in found[:-1]:
        assert torch.equal(logits, found[-1][0]) and outputs == found[-1][1]


def test_only_the_values_of_chosen_pages_are_fetched() -> None:
    fetched = {}
    for name, num_outliers in (("off", 0), ("landmarks", 0), ("outliers", 3)):
        kind = "off" if name == "off" else "landmarks"
        more = {"retention.sparse": kind, "retention.sparse_outliers": num_outliers}
        runner = Runner(build(SHADOW | more))
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
    assert fetched["outliers"] == (2 + 3) * 4 * each


def test_pages_that_wait_exactly_are_always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"cache.residual_tokens": 7, "retention.sparse_pages": 3, "retention.sparse_outliers": 2}
    runner = Runner(build(SHADOW | more))
    watch = Watch(runner, monkeypatch)
    request_id = runner.add(tokens(61), 6)
    runner.until(lambda: len(runner.outputs[request_id]) == 4)
    assert watch.picked
    for picked in watch.picked:
        newest = picked.max()
        assert picked.shape[-1] == 5 and (picked >= 0).all(), "outliers are none of those"
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


def test_what_outliers_are_found_by_is_counted_and_checked() -> None:
    found = []
    for count in (0, 1):
        runner = Runner(build(SHADOW | {"retention.sparse_outliers": count}))
        request_id = runner.add(tokens(40), 8)
        runner.until(lambda r=runner, i=request_id: len(r.outputs[i]) == 3)
        lines = {line.name: line.num_bytes for line in runner.engine.snapshot().ledger}
        bounds, traffic = (
            runner.engine.stack.runner.bounds,
            runner.engine.stack.runner.timing.traffic,
        )
        assert bounds is not None and lines["page_bounds"] == bounds.num_bytes
        found.append((bounds.num_bytes, traffic.bounds_bytes, traffic.pages_read))
    vectors = bounds.tensor.numel() // model().arch.head_dim
    assert found[1][0] - found[0][0] == 4 * vectors
    assert found[1][1] - found[0][1] == 4 * 10 * 2 * 2, "of full pages, layers and KV heads"
    assert found[1][2] - found[0][2] == 2 * 2, "a page more of each layer and KV head"
    assert bounds.cosines is not None
    with torch.inference_mode():
        bounds.cosines -= 0.2
    assert "are not those of its keys" in runner.engine.check_integrity().message


def test_it_is_switched_live() -> None:
    runner = Runner(build(SHADOW | {"retention.sparse": "quest"}))
    request_id = runner.add(tokens(40), 30)
    for name, count in (
        ("landmarks", 0),
        ("off", 2),
        ("landmarks", 2),
        ("landmarks", 0),
        ("quest", 1),
    ):
        runner.step(5)
        changes = {"retention.sparse": name, "retention.sparse_outliers": count}
        assert set(runner.engine.apply(changes).kinds.values()) == {"hot"}
    runner.drain()
    assert len(runner.outputs[request_id]) == 30
    assert all(row.page < 10 for row in runner.engine.stack.pool.index.rows()), "only the prompt's"
