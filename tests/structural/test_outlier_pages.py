"""Outlier pages: those whose keys are least alike stay exact, the others are encoded (ShadowKV)."""

from typing import Any

import numpy as np
import pytest
import torch
from kvkernels.common import rotate
from kvkernels.pages import encode_pages

from tests.engine.harness import Runner, assert_naive, build, model, tokens
from tests.structural.test_landmarks import SHADOW
from tests.structural.test_residual import page_formats, row_bytes
from tests.structural.test_sparse import Watch
from workbench.cache.filling import Filling
from workbench.engine.engine import Engine
from workbench.errors import SettingError

SIZE = 8


def settings(name: str = "lowrank", outliers: int = 2, **more: Any) -> dict[str, Any]:
    return {"cache.k_format": name, "cache.v_format": "fp32" if name == "lowrank" else name,
            "cache.block_size": SIZE, "cache.outlier_pages": outliers, "cache.sink_tokens": 0,
            "cache.hbm_budget_mib": 0.5} | more  # fmt: skip


def exact_pages(engine: Engine, request_id: str, group: int) -> set[int]:
    """Full pages of a request that are in the class of open ones."""
    stack = engine.stack
    blocks = stack.manager.requests[request_id]
    full = blocks.table[group, : int(blocks.stored_len[group]) // blocks.block_size]
    found = stack.pool.page_classes(full) == stack.manager.roles.open[group]
    return set(np.flatnonzero(found).tolist())


class Keys:
    """Every key that an engine writes, fp64 [T, Hkv, D] a layer, of its only request."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layers: dict[int, list[torch.Tensor]] = {}
        self._table = engine.stack.runner.rope_table
        forward = engine.model.decoder.forward

        def watched(tokens: Any, positions: torch.Tensor, attend: Any, *rest: Any, **more: Any):
            def seen(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                kept = k.double().clone()
                if self._table is not None:
                    parts = (part[positions][:, None].double() for part in self._table)
                    kept = rotate(kept, *parts)
                self.layers.setdefault(layer, []).append(kept)
                return attend(layer, q, k, v)

            return forward(tokens, positions, seen, *rest, **more)

        monkeypatch.setattr(engine.model.decoder, "forward", watched)

    def least(self, num_pages: int) -> np.ndarray:
        """Least cosine of a key to the mean of its page, [L, Hkv, pages]."""
        keys = torch.stack([torch.cat(self.layers[at]) for at in sorted(self.layers)])
        paged = keys[:, : num_pages * SIZE].unflatten(1, (num_pages, SIZE))  # [L, P, S, H, D]
        mean = paged.mean(2, keepdim=True)
        return torch.cosine_similarity(paged, mean, dim=-1).amin(2).transpose(1, 2).numpy()


@pytest.mark.parametrize("name", ["lowrank", "int4", "kivi2"])
@pytest.mark.parametrize("grouping", ["model", "layer", "head"])
@pytest.mark.parametrize("residual", [0, 9])
def test_the_worst_so_far_stay_and_the_others_are_sealed(
    name: str, grouping: str, residual: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again in float64, after every step, of prompt and answer alike."""
    changes = {"cache.grouping": grouping, "scheduling.chunk_tokens": 11,
               "cache.residual_tokens": residual}  # fmt: skip
    runner = Runner(build(settings(name, **changes)))
    engine = runner.engine
    keys = Keys(engine, monkeypatch)
    request_id = runner.add(tokens(70), 24)
    runner.until(lambda: request_id in engine.stack.manager.requests)
    demoted, before = 0, {}
    for _ in range(20):
        stored = int(engine.stack.manager.requests[request_id].stored_len[0])
        waiting = -(-residual // SIZE)
        final = max(0, stored // SIZE - waiting)
        least = keys.least(stored // SIZE)[..., :final]
        for group, each in enumerate(engine.stack.geometry.groups):
            of = least[np.ix_(each.layers, each.kv_heads)].min((0, 1))
            wanted = set(np.argsort(of, kind="stable")[:2].tolist())
            found = exact_pages(engine, request_id, group)
            waits = set(range(final, stored // SIZE))
            assert found == wanted | waits, (group, of)
            demoted += len(before.get(group, wanted) - wanted)
            before[group] = wanted
        runner.step()
    assert demoted, "nothing that stayed was ever sealed: the test tells nothing"
    runner.drain()
    assert len(runner.outputs[request_id]) == 24


def test_a_demoted_page_is_sealed_as_encoding_it_at_once() -> None:
    runner = Runner(build(settings("kivi4", 2, **{"scheduling.chunk_tokens": 8})))
    engine, stack = runner.engine, runner.engine.stack
    request_id = runner.add(tokens(80), 8)
    old, new = stack.specs.open[0], stack.specs.full[0]
    before: dict[int, bytes] = {}
    demoted = 0
    while not runner.outputs[request_id]:
        runner.step()
        exact = exact_pages(engine, request_id, 0)
        for page in sorted(set(before) - exact):
            values = torch.frombuffer(bytearray(before[page]), dtype=torch.float32)
            planes = values.view(old.num_layers, 2, old.num_kv_heads, SIZE, old.head_dim)
            once = torch.zeros(1, new.page_bytes, dtype=torch.uint8)
            for number, plane in enumerate(("k", "v")):
                encode_pages(once, new, plane, stack.store.state(0, new), planes[None, :, number])
            assert row_bytes(engine, request_id, page) == once[0].numpy().tobytes()
            demoted += 1
        before = {page: row_bytes(engine, request_id, page) for page in exact}
    assert demoted
    runner.drain()


def test_chunks_and_neighbours_do_not_change_which_stay() -> None:
    """One chunk, many, alone, and in a ragged batch."""
    prompts = [tokens(count, seed) for count, seed in ((70, 1), (33, 2), (50, 3))]
    alone = {}
    for chunk in (70, 8):
        for number, prompt in enumerate(prompts):
            runner = Runner(build(settings("fp8_e4m3", 2, **{
                "cache.grouping": "head", "scheduling.chunk_tokens": chunk,
                "scheduling.token_budget": 80, "cache.sink_tokens": 0})))  # fmt: skip
            request_id = runner.add(prompt, 4)
            runner.until(lambda r=runner, i=request_id: len(r.outputs[i]) == 1)
            alone[chunk, number] = _kept(runner.engine, request_id)
            runner.drain()
    for number in range(3):
        assert _same(alone[70, number], alone[8, number]) > 0.8, "codes shape later keys a little"
    runner = Runner(
        build(
            settings(
                "fp8_e4m3",
                2,
                **{
                    "cache.grouping": "head",
                    "scheduling.chunk_tokens": 8,
                    "scheduling.token_budget": 80,
                },
            )
        )
    )
    ids = [runner.add(prompt, 40) for prompt in prompts]
    for number, request_id in enumerate(ids):
        runner.until(lambda i=request_id: len(runner.outputs[i]) >= 1)
        pages = len(prompts[number]) // SIZE
        found = [{page for page in each if page < pages}
                 for each in _kept(runner.engine, request_id)]  # fmt: skip
        assert _same(found, alone[8, number]) > 0.8
    runner.drain()


def _kept(engine: Engine, request_id: str) -> list[set[int]]:
    return [exact_pages(engine, request_id, at) for at in range(len(engine.stack.specs.full))]


def _same(one: list[set[int]], other: list[set[int]]) -> float:
    """Share of the pages of one that are in the other."""
    return sum(len(a & b) for a, b in zip(one, other, strict=True)) / sum(map(len, one))


@pytest.mark.parametrize("values", ["hbm", "dram"])
def test_so_many_outliers_as_pages_are_the_full_cache(values: str) -> None:
    changes = {"cache.values": values, "tiers.dram_mib": 1.0}
    runner = Runner(build(settings("int4", 64, **changes)))
    for seed in range(3):
        assert_naive(model(), tokens(30, seed), runner.one(tokens(30, seed), 20))


def test_their_bytes_are_counted_as_what_they_are() -> None:
    runner = Runner(build(settings("int4", 2, **{"cache.grouping": "layer"})))
    engine = runner.engine
    request_id = runner.add(tokens(70), 20)
    runner.until(lambda: len(runner.outputs[request_id]) == 6)
    stack = engine.stack
    used = -(-engine.requests[request_id].num_computed_tokens // SIZE)
    for group, (full, open_) in enumerate(zip(stack.specs.full, stack.specs.open, strict=True)):
        names = page_formats(engine, request_id, group)
        assert names.count("fp32") == 3 and len(names) == used, "two outliers and the open page"
        held = stack.manager.requests[request_id].held(group)
        size = sum(stack.pool.classes[stack.pool.page_class(block)].page_bytes for block in held)
        assert size == 3 * open_.page_bytes + (used - 3) * full.page_bytes, "and no spare is kept"
        assert open_.page_bytes > 4 * full.page_bytes
    runner.drain()


def test_what_others_share_ends_before_the_first_of_them() -> None:
    runner = Runner(build(settings("int8", 1)))
    engine = runner.engine
    prompt = tokens(80)
    first = runner.add(prompt, 12)
    runner.until(lambda: len(runner.outputs[first]) == 1)
    shared = min(exact_pages(engine, first, 0))
    assert shared > 0, "another seed is needed"
    assert len(engine.stack.pool.index) == shared
    assert "/o1" in engine.stack.manager.keys.format_label
    second = runner.add(prompt, 12)
    runner.until(lambda: len(runner.outputs[second]) >= 1)
    assert engine.requests[second].num_cached_tokens == shared * SIZE
    assert exact_pages(engine, second, 0) == exact_pages(engine, first, 0)
    runner.drain()
    assert runner.outputs[first] == runner.outputs[second]


def test_sparse_reads_take_them_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """V of the others lies in DRAM, theirs where their K is."""
    more = {"cache.outlier_pages": 2, "retention.sparse_outliers": 1}
    runner = Runner(build(SHADOW | more))
    engine, watch = runner.engine, Watch(runner, monkeypatch)
    request_id = runner.add(tokens(61), 6)
    runner.until(lambda: len(runner.outputs[request_id]) == 1)
    watch.picked.clear()
    runner.step()
    heads = model().arch.num_kv_heads
    assert len(watch.picked) == 2
    for layer, picked in enumerate(watch.picked):
        assert picked.shape[-1] == 5 and (picked >= 0).all()
        for head in range(heads):
            exact = exact_pages(engine, request_id, layer * heads + head)
            assert len(exact) == 2 and exact <= set(picked[head, 0].tolist())
    fetched = engine.stack.runner.timing.traffic.fetched_bytes
    each = engine.stack.specs.joined[0].part("v").layer_bytes
    assert fetched == 2 * heads * 2 * each, "of the two others that are full"
    runner.drain()


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_they_go_and_come_with_their_request(preemption: str) -> None:
    changes = {"scheduling.preemption": preemption, "tiers.dram_mib": 0.5}
    runner = Runner(build(settings("int4", 2, **changes)))
    engine = runner.engine
    request_id = runner.add(tokens(70), 30)
    runner.step(10)
    before = exact_pages(engine, request_id, 0)
    engine.scheduler.preempt(engine.requests[request_id], "test")
    runner.until(lambda: request_id in engine.stack.manager.requests)
    runner.step(3)
    assert len(before) == 2
    if preemption == "swap":
        assert exact_pages(engine, request_id, 0) == before
    runner.drain()
    assert len(runner.outputs[request_id]) == 30


def test_they_change_live_and_no_request_is_lost() -> None:
    runner = Runner(build(settings("int8", 0, **{"cache.grouping": "layer"})))
    engine = runner.engine
    first = runner.add(tokens(40), 60)
    runner.step(6)
    for changes in (
        {"cache.outlier_pages": 3}, {"cache.k_format": "kivi2"}, {"cache.sink_tokens": 9},
        {"cache.outlier_pages": 1}, {"cache.residual_tokens": 9, "cache.v_format": "int4"},
        {"cache.outlier_pages": 0}, {"cache.outlier_pages": 2, "cache.k_format": "fp32"},
    ):  # fmt: skip
        assert set(engine.apply(changes).kinds.values()) == {"recode"}
        runner.check()
        runner.step(6)
    second = runner.add(tokens(40), 6)
    runner.drain()
    assert len(runner.outputs[first]) == 60 and len(runner.outputs[second]) == 6


def test_evicted_ones_make_room_for_others() -> None:
    changes = {"retention.policy": "sink+window", "retention.budget_tokens": 32,
               "retention.sink_tokens": 0, "retention.window_tokens": 24}  # fmt: skip
    runner = Runner(build(settings("int4", 2, **changes)))
    request_id = runner.add(tokens(40), 40)
    runner.until(lambda: len(runner.outputs[request_id]) == 1)
    seen = set()
    while (
        len(runner.outputs[request_id]) < 40 and request_id in runner.engine.stack.manager.requests
    ):
        blocks = runner.engine.stack.manager.requests[request_id]
        exact = exact_pages(runner.engine, request_id, 0)
        seen.add((len(exact), max((int(blocks.pos[0, page * SIZE]) for page in exact), default=0)))
        runner.step()
    assert max(count for count, _ in seen) == 2 and max(first for _, first in seen) > 48
    runner.drain()


@pytest.mark.parametrize("stored, new, waiting, due", [
    (0, 40, 0, 3), (40, 8, 2, 1), (40, 7, 2, 0), (40, 8, 1, 0), (0, 15, 0, 0), (40, 8, 5, 4),
])  # fmt: skip
def test_a_step_takes_as_many_spares_as_it_seals(
    stored: int, new: int, waiting: int, due: int
) -> None:
    filled = Filling.of(0, stored, new, SIZE, num_waiting=waiting, num_outliers=2)
    assert filled.num_sealed == due


@pytest.mark.parametrize("changes, sentence", [
    ({"cache.outlier_pages": -1}, "cache.outlier_pages = -1 is out of range: 0 to 4096"),
    ({"cache.outlier_pages": 2, "retention.level": "token"}, "cache.outlier_pages = 2 lets full "
     "pages stay as they are, so retention.level cannot be token: choose page"),
    ({"cache.outlier_pages": 2, "cache.mode": "off"}, "so cache.mode cannot be off: choose on"),
    ({"cache.outlier_pages": 2, "cache.allocation": "contiguous"}, "so cache.allocation cannot"),
])  # fmt: skip
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    engine = build(settings("int8", 0))
    config = engine.config
    with pytest.raises(SettingError) as error:
        engine.apply(changes)
    assert sentence in str(error.value) and engine.config is config
