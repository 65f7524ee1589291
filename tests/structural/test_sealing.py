"""Formats grouped along tokens: open pages in the compute dtype, sealed ones as encoded at once."""

from typing import Any

import numpy as np
import pytest
import torch
from kvkernels.pages import encode_pages

from tests.engine.harness import Runner, build, pages, tokens
from workbench.engine.engine import Engine
from workbench.errors import CapacityError, SettingError

GROUPED = ["kivi4", "kivi3", "kivi2"]


def grouped(name: str = "kivi4", **more: Any) -> dict[str, Any]:
    return {"cache.k_format": name, "cache.v_format": name, "cache.block_size": 8} | more


class Written:
    """What the engine's kernels were given to write: [layer] -> K and V of tokens, in order."""

    def __init__(self, engine: Engine) -> None:
        self._kernels = engine.stack.store.kernels
        self.k: dict[int, list[torch.Tensor]] = {}
        self.v: dict[int, list[torch.Tensor]] = {}
        self._layer = -1
        self._open = engine.stack.specs.open
        decoder = engine.model.decoder
        self._num_layers = decoder.arch.num_layers
        engine.stack.store.kernels = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def write_kv(
        self, arena: torch.Tensor, plan: Any, local: int, k: torch.Tensor, v: torch.Tensor,
        state: Any,
    ) -> None:  # fmt: skip
        if plan.spec in self._open:  # once a layer; the sealed pages get nothing
            self._layer = (self._layer + 1) % self._num_layers
            self.k.setdefault(self._layer, []).append(k.clone())
            self.v.setdefault(self._layer, []).append(v.clone())
        self._kernels.write_kv(arena, plan, local, k, v, state)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("grouping", ["model", "layer", "head"])
def test_a_sealed_page_is_what_encoding_it_at_once_gives(name: str, grouping: str) -> None:
    engine = build(grouped(name, **{"cache.grouping": grouping, "scheduling.chunk_tokens": 11}))
    runner, stack = Runner(engine), engine.stack
    written = Written(engine)
    request_id = runner.add(tokens(30), 20)
    runner.step(15)
    blocks = stack.manager.requests[request_id]
    assert int(blocks.stored_len[0]) == 42
    for group in stack.geometry.groups:
        spec, full = stack.specs.full[group.index], 42 // 8
        once = torch.zeros(full, spec.page_bytes, dtype=torch.uint8)
        for plane, parts in (("k", written.k), ("v", written.v)):
            values = torch.stack([torch.cat(parts[layer])[:40] for layer in group.layers])
            heads = values[:, :, list(group.kv_heads)].unflatten(1, (full, 8))  # [L, n, S, H, D]
            state = stack.store.state(group.index, spec)
            encode_pages(once, spec, plane, state, heads.permute(1, 0, 3, 2, 4).contiguous())
        for page in range(full):
            block = int(blocks.table[group.index, page])
            assert stack.pool.page_class(block) == stack.manager.classes[group.index]
            found = stack.store.read_row(stack.manager.parts((block,)))
            assert (found == once[page].numpy()).all()
    runner.drain()


def contents(engine: Engine, request_id: str) -> list[list[bytes]]:
    """Of each group: the bytes of sealed pages, and K and V of an open page's stored slots."""
    stack = engine.stack
    blocks = stack.manager.requests[request_id]
    found = []
    for group, stored in enumerate(blocks.stored_len.tolist()):
        parts = []
        for page in range(-(-stored // 8)):
            block = int(blocks.table[group, page])
            data = stack.store.read_row(stack.manager.parts((block,)))
            if (page + 1) * 8 > stored:
                spec = stack.specs.open[group]
                assert stack.pool.page_class(block) == stack.manager.roles.open[group]
                plain = data.view(np.float32).reshape(2, -1, 8, spec.head_dim)  # [K V, L * H, S, D]
                data = plain[:, :, : stored - page * 8]
            parts.append(data.tobytes())
        found.append(parts)
    return found


def test_a_request_with_open_pages_and_uneven_groups_comes_back_from_a_swap() -> None:
    engine = build(grouped("kivi2", **{
        "cache.grouping": "head", "retention.policy": "h2o", "retention.budget_tokens": 32,
        "retention.sink_tokens": 2, "retention.window_tokens": 8, "retention.split": "ada+pyramid",
        "scheduling.preemption": "swap", "tiers.dram_mib": 0.5}), 3)  # fmt: skip
    runner = Runner(engine)
    request_id = runner.add(tokens(60), 40)
    blocks = engine.stack.manager.requests
    runner.until(lambda: request_id in blocks and blocks[request_id].hashing is False
                 and len(set(blocks[request_id].stored_len.tolist())) > 1
                 and int(blocks[request_id].stored_len[0]) % 8 == 3)  # fmt: skip
    before, lens = contents(engine, request_id), blocks[request_id].stored_len.copy()
    positions = [blocks[request_id].positions(group).tolist() for group in range(len(lens))]
    request = engine.requests[request_id]
    engine.scheduler.preempt(request, "test")
    runner.check()
    assert engine.fetcher.is_swapped(request)
    restored: list[Any] = []
    admitted = engine.scheduler.on_admit

    def on_admit(*args: Any) -> None:
        restored.append((contents(engine, request_id), blocks[request_id].stored_len.copy()))
        admitted(*args)

    engine.scheduler.on_admit = on_admit
    runner.until(lambda: restored)
    assert restored[0][0] == before and (restored[0][1] == lens).all()
    after = [blocks[request_id].positions(group).tolist() for group in range(len(lens))]
    assert [line[: len(old)] for line, old in zip(after, positions, strict=True)] == positions
    runner.drain()
    assert len(runner.outputs[request_id]) == 40


@pytest.mark.parametrize("name", GROUPED)
def test_a_recode_leaves_a_partly_filled_page_as_it_is(name: str) -> None:
    runner = Runner(build({"cache.block_size": 8}))
    engine = runner.engine
    request_id = runner.add(tokens(20), 30)
    runner.step(8)
    stored = int(engine.stack.manager.requests[request_id].stored_len[0])
    assert stored % 8
    plain = contents(engine, request_id)
    engine.apply({"cache.k_format": name, "cache.v_format": name})
    runner.check()
    sealed = contents(engine, request_id)
    assert sealed[0][-1] == plain[0][-1] and len(sealed[0][0]) < len(plain[0][0]) / 3
    engine.apply({"cache.k_format": "fp32", "cache.v_format": "fp32"})
    runner.check()
    back = contents(engine, request_id)
    assert back[0][-1] == plain[0][-1]
    for old, new in zip(plain[0][:-1], back[0][:-1], strict=True):
        one, two = np.frombuffer(old, np.float32), np.frombuffer(new, np.float32)
        bits = int(name[-1])
        assert 0 < np.abs(one - two).max() <= np.ptp(one) / (2**bits - 1) / 2 * 1.01
    runner.drain()
    assert len(runner.outputs[request_id]) == 30


def test_a_second_request_hits_sealed_pages_alone() -> None:
    runner = Runner(build(grouped(**{"tiers.dram_mib": 0.5})))
    engine = runner.engine
    first = runner.add(tokens(30), 20)
    runner.step(2)
    assert len(engine.stack.pool.index) == 30 // 8, "an open page is no row"
    sealed = contents(engine, first)[0][:3]
    second = runner.add(tokens(30), 20)
    runner.step()
    tables = engine.stack.manager.requests
    assert engine.requests[second].num_cached_tokens == 24
    assert (tables[first].table[0, :3] == tables[second].table[0, :3]).all()
    assert tables[first].table[0, 3] != tables[second].table[0, 3]
    runner.step(8)
    assert contents(engine, first)[0][:3] == contents(engine, second)[0][:3] == sealed
    runner.drain()
    assert len(runner.outputs[second]) == 20
    third = runner.add(tokens(30) + [1] * 9, 4)
    runner.step()
    assert engine.requests[third].num_cached_tokens == 24
    runner.drain()


def test_more_open_pages_must_not_lose_a_request() -> None:
    """A longer chunk fills more open pages at once, which leave less room for sealed ones."""
    runner = Runner(build(grouped("kivi2", **{"cache.hbm_budget_mib": 0.0625})))
    engine = runner.engine
    limit = engine.stack.manager.capacity_pages
    request_id = runner.add(tokens(20), (limit - 1) * 8 - 20)
    runner.until(lambda: engine.requests[request_id].num_tokens > (limit - 2) * 8)
    with pytest.raises(
        CapacityError, match="request 1 would need .* blocks and the whole pool has"
    ):
        engine.apply({"scheduling.chunk_tokens": 96, "scheduling.token_budget": 96})
    assert engine.stack.manager.capacity_pages == limit
    engine.scheduler.preempt(engine.requests[request_id], "test")
    runner.drain()
    assert len(runner.outputs[request_id]) == (limit - 1) * 8 - 20


REFUSED = [
    ({"cache.k_format": "kivi4", "retention.level": "token"}, "retention.level"),
    ({"cache.v_format": "kivi2", "cache.allocation": "contiguous"}, "cache.allocation"),
    ({"cache.k_format": "kivi3", "cache.mode": "off"}, "cache.mode"),
    ({"retention.split": "ada"}, "cache.grouping"),
    ({"retention.split": "ada+pyramid", "cache.grouping": "layer"}, "cache.grouping"),
    ({"retention.split": "pyramid"}, "cache.grouping"),
]  # fmt: skip


@pytest.mark.parametrize("changes, field", REFUSED)
def test_what_cannot_go_together_is_refused_by_name_and_nothing_changes(
    changes: dict[str, Any], field: str
) -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(64)}))
    engine = runner.engine
    request_id = runner.add(tokens(30), 6)
    runner.step(3)
    config, version, stack = engine.config, engine.config_version, engine.stack
    table = stack.manager.requests[request_id].table.copy()
    for act in (engine.preview, engine.apply):
        with pytest.raises(SettingError, match=f"{field} .*choose ") as error:
            act(changes)
        assert "\n" not in str(error.value) and next(iter(changes.values())) in str(error.value)
    assert (engine.config, engine.config_version) == (config, version)
    assert engine.stack is stack
    assert (stack.manager.requests[request_id].table == table).all()
    runner.drain()
    assert len(runner.outputs[request_id]) == 6
