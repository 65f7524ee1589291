"""The residual: the newest full pages of a request stay in full precision and are sealed later."""

from typing import Any

import numpy as np
import pytest
import torch
from kvkernels.layout import PageSpec
from kvkernels.pages import encode_pages
from kvkernels.triton_formats import check_twins, plane_of

from tests.engine.harness import Runner, build, page_formats, tokens
from workbench.cache.filling import Filling
from workbench.engine.engine import Engine
from workbench.errors import SettingError

SIZE = 8


def settings(name: str = "int4", residual: int = 24, **more: Any) -> dict[str, Any]:
    return {"cache.k_format": name, "cache.v_format": name, "cache.block_size": SIZE,
            "cache.residual_tokens": residual, "cache.hbm_budget_mib": 0.5} | more  # fmt: skip


@pytest.mark.parametrize("name", ["int4", "kivi2", "fp8_e4m3"])
@pytest.mark.parametrize("grouping", ["model", "head"])
def test_the_newest_pages_wait_and_older_ones_are_sealed(name: str, grouping: str) -> None:
    changes = settings(name, **{"cache.grouping": grouping, "scheduling.chunk_tokens": 11})
    runner = Runner(build(changes))
    engine = runner.engine
    request_id = runner.add(tokens(50), 30)
    runner.until(lambda: request_id in engine.stack.manager.requests)
    before: dict[int, bytes] = {}
    for _ in range(25):
        stored = int(engine.stack.manager.requests[request_id].stored_len[0])
        sealed = max(0, stored // SIZE - 3)
        unsealed = -(-stored // SIZE) - sealed
        for group in range(len(engine.stack.specs.full)):
            assert page_formats(engine, request_id, group) == [name] * sealed + ["fp32"] * unsealed
        assert len(engine.stack.pool.index) == sealed, "a page that waits is no row"
        rows = {page: row_bytes(engine, request_id, page) for page in range(sealed)}
        assert before.items() <= rows.items(), "a sealed page changed"
        before = rows
        runner.step()
    assert sealed > 3
    runner.drain()
    assert len(runner.outputs[request_id]) == 30


def row_bytes(engine: Engine, request_id: str, page: int) -> bytes:
    stack = engine.stack
    blocks = stack.manager.requests[request_id].row_at(page)
    return stack.store.read_row(stack.manager.parts(blocks)).tobytes()


def test_a_page_that_waited_is_sealed_as_encoding_it_at_once() -> None:
    runner = Runner(build(settings("kivi4", 16)))
    engine = runner.engine
    request_id = runner.add(tokens(40), 20)
    runner.until(lambda: len(engine.stack.pool.index) == 3)
    stack = engine.stack
    old, new = stack.specs.open[0], stack.specs.full[0]
    waiting = np.frombuffer(row_bytes(engine, request_id, 3), np.uint8)
    values = torch.from_numpy(waiting.copy()).view(torch.float32)
    planes = values.view(old.num_layers, 2, old.num_kv_heads, SIZE, old.head_dim)
    once = torch.zeros(1, new.page_bytes, dtype=torch.uint8)
    for number, plane in enumerate(("k", "v")):
        encode_pages(once, new, plane, stack.store.state(0, new), planes[None, :, number])
    runner.until(lambda: len(stack.pool.index) == 4)
    assert row_bytes(engine, request_id, 3) == once[0].numpy().tobytes()
    runner.drain()


def test_it_changes_live_and_no_request_is_lost() -> None:
    runner = Runner(build(settings("int8", 0)))
    engine = runner.engine
    first = runner.add(tokens(40), 60)
    runner.step(6)
    for changes in (
        {"cache.residual_tokens": 32}, {"cache.k_format": "kivi2"}, {"cache.kivi_group": 8},
        {"cache.residual_tokens": 5}, {"cache.k_format": "fp32", "cache.v_format": "fp32"},
        {"cache.residual_tokens": 0, "cache.k_format": "kivi4"},
    ):  # fmt: skip
        report = engine.apply(changes)
        assert set(report.kinds.values()) == {"recode"}
        runner.check()
        runner.step(6)
    second = runner.add(tokens(40), 6)
    runner.drain()
    assert len(runner.outputs[first]) == 60 and len(runner.outputs[second]) == 6


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_waiting_pages_go_and_come_with_their_request(preemption: str) -> None:
    changes = {"scheduling.preemption": preemption, "tiers.dram_mib": 0.5}
    runner = Runner(build(settings("int4", 24, **changes)))
    engine = runner.engine
    request_id = runner.add(tokens(40), 30)
    runner.step(6)
    engine.scheduler.preempt(engine.requests[request_id], "test")
    runner.until(lambda: request_id in engine.stack.manager.requests)
    runner.step(3)
    assert page_formats(engine, request_id)[-4:] == ["fp32"] * 4
    runner.drain()
    assert len(runner.outputs[request_id]) == 30


def test_a_residual_longer_than_the_text_is_the_full_cache() -> None:
    plain = Runner(build(settings("fp32", 0)))
    waits = Runner(build(settings("int2", 512)))
    for seed in range(3):
        assert plain.one(tokens(30, seed), 20) == waits.one(tokens(30, seed), 20)


def test_two_residuals_are_two_numerics_tags() -> None:
    runner = Runner(build(settings("int4", 16)))
    runner.one(tokens(60), 4)
    assert {row.lineage for row in runner.engine.stack.pool.index.rows()} == {"int4@model/r16"}
    runner.engine.apply({"cache.residual_tokens": 24, "cache.reuse": "exact"})
    request_id = runner.add(tokens(60), 4)
    runner.step()
    assert runner.engine.requests[request_id].num_cached_tokens == 0
    runner.drain()


@pytest.mark.parametrize("stored, new, residual, waiting", [
    (0, 50, 3, 0), (48, 1, 3, 3), (47, 1, 3, 3), (47, 20, 2, 2), (40, 9, 3, 1), (64, 8, 0, 0),
])  # fmt: skip
def test_pages_to_seal_are_those_behind_the_residual(
    stored: int, new: int, residual: int, waiting: int
) -> None:
    filled = Filling.of(0, stored, new, SIZE, residual=residual, num_waiting=waiting)
    after = (stored + new) // SIZE - max(residual, 0)
    assert filled.num_sealed == max(0, after - (stored // SIZE - waiting))
    assert filled.num_open == -(-(stored + new) // SIZE) - stored // SIZE


REFUSED = [
    ({"cache.k_format": "kivi4", "cache.kivi_group": 16}, "cache.kivi_group = 16 tokens does not "
     "divide cache.block_size = 8: choose a group of at most a page"),
    ({"cache.v_format": "kivi4", "cache.kivi_group": 32}, "cache.kivi_group = 32: v_format = kivi4"
     ": a group of 32 channels does not divide head_dim 16"),
    ({"cache.kivi_group": 12}, "cache.kivi_group = 12 is not allowed: choose one of 0, 8, 16, 32"),
    ({"cache.residual_tokens": -1}, "cache.residual_tokens = -1 is out of range: 0 to 4096"),
    ({"cache.residual_tokens": 16, "retention.level": "token"}, "cache.residual_tokens = 16 lets "
     "full pages wait as they are, so retention.level cannot be token: choose page"),
    ({"cache.residual_tokens": 16, "cache.mode": "off"}, "so cache.mode cannot be off: choose on"),
    ({"cache.residual_tokens": 16, "cache.allocation": "contiguous"}, "so cache.allocation cannot"),
]  # fmt: skip


@pytest.mark.parametrize("changes, sentence", REFUSED)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    runner = Runner(build(settings("int8", 0)))
    engine = runner.engine
    config = engine.config
    for act in (engine.preview, engine.apply):
        with pytest.raises(SettingError) as error:
            act(changes)
        assert sentence in str(error.value) and "\n" not in str(error.value)
    assert engine.config is config
    runner.one(tokens(9), 3)


@pytest.mark.parametrize("group, slots, bits", [(8, 32, 6.0), (16, 32, 4.0), (32, 32, 3.0),
                                                 (64, 64, 2.5)])  # fmt: skip
def test_a_group_takes_the_bytes_it_says(group: int, slots: int, bits: float) -> None:
    """2-bit codes and two fp16 numbers a group: 2 + 32 / g bits."""
    spec = PageSpec(3, 2, 64, slots, "kivi2", "kivi2", group)
    assert spec.bits_per_element == bits
    pages = torch.zeros(1, spec.page_bytes, dtype=torch.uint8)
    assert pages.untyped_storage().nbytes() * 8 / (2 * 3 * 2 * slots * 64) == bits


def test_a_group_is_of_kivi_alone_and_names_its_class() -> None:
    assert PageSpec(1, 1, 64, 32, "int8", "int2", 16) == PageSpec(1, 1, 64, 32, "int8", "int2")
    assert PageSpec(1, 1, 64, 32, "kivi4", "kivi4", 16).label == "kivi4/g16"
    assert PageSpec(1, 1, 64, 32, "kivi4", "kivi2", 16) != PageSpec(1, 1, 64, 32, "kivi4", "kivi2")


def test_a_group_of_a_whole_vector_reads_as_one_scale_a_token() -> None:
    value = plane_of(PageSpec(1, 1, 64, 64, "bf16", "kivi2", 64), "v")
    assert (value.family, value.fold, value.kinds) == ("uint", 2, 2)
    with pytest.raises(ValueError, match="in groups of 8 tokens: choose a multiple of 16"):
        check_twins(PageSpec(1, 1, 64, 32, "kivi4", "bf16", 8))
