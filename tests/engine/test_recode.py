"""Recode: resident pages change their format, no request is lost, lineage is kept apart."""

import numpy as np
import pytest

from tests.engine.harness import SMALL, Runner, build, pages, spec, tokens
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.random_launch import random_model
from workbench.request import RequestStatus
from workbench.settings.formats import KV_FORMATS, PRE_ROPE_FORMATS

# each format as itself, and with the next one both ways
PAIRS = [pair for one, two in zip(KV_FORMATS, KV_FORMATS[1:] + KV_FORMATS[:1], strict=True)
         for pair in ((one, one), (one, two), (two, one))]  # fmt: skip


def formats(k_format: str, v_format: str) -> dict[str, str]:
    return {"cache.k_format": k_format, "cache.v_format": v_format}


@pytest.mark.parametrize("grouping", ["model", "halves"])
@pytest.mark.parametrize("k_format, v_format", PAIRS)
def test_every_format_takes_resident_pages_over(
    k_format: str, v_format: str, grouping: str
) -> None:
    num_layers = 3 if grouping == "halves" else 2
    runner = Runner(build({"cache.grouping": grouping}, num_layers))
    cached = tokens(40, 1)
    runner.one(cached, 2)
    ids = [runner.add(tokens(20 + at, at), 20) for at in range(3)]
    runner.step(6)
    report = runner.engine.apply(formats(k_format, v_format))
    runner.check()
    if k_format in PRE_ROPE_FORMATS:  # keys that RoPE has turned cannot be turned back in place
        assert report.kinds["cache.k_format"] == "rebuild"
    elif (k_format, v_format) != ("fp32", "fp32"):
        assert report.num_recoded_blocks > 0 and set(report.kinds.values()) == {"recode"}
    runner.drain()
    assert {runner.status[request_id] for request_id in ids} == {RequestStatus.FINISHED_LENGTH}
    back = runner.engine.apply(formats("fp32", "fp32"))
    runner.check()
    assert back.blocks_after == report.blocks_before
    runner.one(cached, 4)


def test_recoded_pages_hold_nearly_the_same_numbers() -> None:
    """Keys and values of a resident page before and after; the bound is each format's step."""
    steps = {"bf16": 2**-8, "fp8_e4m3": 2**-3.9, "int8": 1 / 127, "int4": 1 / 7}
    for name, step in steps.items():
        runner = Runner(build())
        runner.one(tokens(40), 1)
        before = _rows(runner)
        runner.engine.apply(formats(name, name))
        runner.engine.apply(formats("fp32", "fp32"))
        after = _rows(runner)
        assert before.keys() == after.keys()
        for key, page in before.items():
            error = np.abs(after[key] - page).max() / np.abs(page).max()
            assert 0 < error <= 1.01 * step, (name, error)


def _rows(runner: Runner) -> dict[bytes, np.ndarray]:
    stack = runner.engine.stack
    return {
        row.chain_key: stack.store.read_row(stack.manager.parts(row.blocks)).view(np.float32).copy()
        for row in stack.pool.index.rows()
    }


@pytest.mark.parametrize(
    "name, least", [("bf16", 1.98), ("fp8_e4m3", 3.9), ("int8", 3.0), ("int4", 5.2)]
)
def test_a_smaller_format_gives_more_blocks_in_the_same_bytes(name: str, least: float) -> None:
    """Heads of 16 carry their scales badly; the ratio with heads of 64 is a bench's figure."""
    runner = Runner(build({"cache.hbm_budget_mib": 1.0}))
    budget = runner.engine.stack.store.num_bytes
    report = runner.engine.apply(formats(name, name))
    assert report.blocks_after / report.blocks_before >= least
    assert runner.engine.stack.store.num_bytes == budget
    spec = runner.engine.stack.specs.full[0]
    assert report.blocks_after == budget // runner.engine.stack.pool.slab_bytes * (
        runner.engine.stack.pool.slab_bytes // spec.page_bytes
    )


@pytest.mark.parametrize("grouping", ["model", "halves"])
def test_a_larger_format_evicts_then_preempts_and_says_so_before(grouping: str) -> None:
    runner = Runner(build(formats("int4", "int4") | {
        "cache.grouping": grouping, "cache.hbm_budget_mib": 0.0625,
        "scheduling.admit_whole_prompt": False}))  # fmt: skip
    runner.one(tokens(80, 9), 2)
    ids = [runner.add(tokens(60, at), 30) for at in range(4)]
    runner.until(lambda: all(not r.is_prefill for r in runner.engine.scheduler.running)
                 and len(runner.engine.scheduler.running) == 4)  # fmt: skip
    promised = runner.engine.preview(formats("fp32", "fp32"))
    assert promised.preview
    report = runner.engine.apply(formats("fp32", "fp32"))
    runner.check()
    for name in ("num_recoded_blocks", "num_evicted_blocks", "num_preempted_requests"):
        assert getattr(promised, name) == getattr(report, name)
    assert report.num_evicted_blocks > 0
    assert report.num_preempted_requests > 0
    runner.drain()
    assert {runner.status[request_id] for request_id in ids} == {RequestStatus.FINISHED_LENGTH}


def test_pure_requests_never_hit_recoded_rows_when_reuse_is_exact() -> None:
    runner = Runner(build(formats("bf16", "bf16")))
    prompt = tokens(40)
    runner.one(prompt, 1)
    runner.engine.apply(formats("int8", "int8") | {"cache.reuse": "exact"})
    lineages = {row.lineage for row in runner.engine.stack.pool.index.rows()}
    assert lineages == {"int8@model<bf16@model"}
    pure = runner.add(prompt, 1)
    runner.step()
    assert runner.engine.metrics.hit_tokens == 0
    runner.drain()
    assert pure in runner.engine.finished
    runner.engine.apply({"cache.reuse": "recoded"})
    again = Runner(runner.engine)
    again.one(prompt + [3], 1)
    assert runner.engine.metrics.hit_tokens == 40


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_blocks_whose_parents_have_left_stay_apart(index: str) -> None:
    """Equal tokens behind different prefixes: without them in HBM, nothing but a key tells."""
    runner = Runner(build({"cache.index": index}))
    firsts = [tokens(4, seed) for seed in (1, 2)]
    for first in firsts:
        runner.one(first + tokens(8, 3), 1)
    pool = runner.engine.stack.pool
    for row in pool.index.rows():
        if list(row.token_ids) in firsts:
            pool.drop(row)
    orphans = [row for row in pool.index.rows() if pool.index.get(row.parent_key) is None]
    assert len(orphans) == 2 and orphans[0].token_ids == orphans[1].token_ids
    runner.engine.apply(formats("int8", "int8"))
    runner.check()
    rows = runner.engine.stack.pool.index.rows()
    assert len(rows) == 4 and len({row.parent_key for row in rows}) == 4
    assert None not in {row.parent_key for row in rows}  # none of them begins a text
    runner.engine.close()


def test_rows_computed_on_recoded_pages_carry_the_mixed_lineage() -> None:
    runner = Runner(build(formats("bf16", "bf16")))
    prompt = tokens(40)
    runner.one(prompt, 1)
    runner.engine.apply(formats("int8", "int8"))
    runner.one(prompt + tokens(20, 2), 1)  # hits recoded rows and adds rows of its own
    labels = [row.lineage for row in runner.engine.stack.pool.index.rows()]
    assert set(labels) == {"int8@model<bf16@model"} and len(labels) == 15
    runner.engine.apply({"cache.reuse": "exact"})
    before = runner.engine.metrics.hit_tokens
    runner.one(prompt + tokens(20, 2), 1)
    assert runner.engine.metrics.hit_tokens == before


def test_pages_below_hbm_in_the_old_format_are_not_hit() -> None:
    runner = Runner(build({"tiers.dram_mib": 0.5, "cache.hbm_budget_mib": pages(32)}))
    prompt = tokens(60)
    runner.one(prompt, 2)
    runner.one(tokens(126, 1), 1)
    runner.engine.apply(formats("int8", "int8"))
    runner.one(prompt, 2)
    assert runner.engine.fetcher.counters.num_loaded_pages == 0
    runner.engine.apply(formats("fp32", "fp32"))
    runner.drain()


def test_scratch_of_a_recode_is_counted() -> None:
    runner = Runner(build())
    runner.one(tokens(60), 2)
    runner.engine.apply(formats("int4", "int4"))
    assert runner.engine.stack.store.scratch.bytes > 0


def test_saturation_is_counted() -> None:
    config = replace_settings(EngineConfig(), SMALL | formats("fp8_e4m3", "fp8_e4m3"))
    loud = random_model(2, seed=1)
    loud.decoder._weights.layers[0].attn_norm.mul_(1e5)  # keys and values beyond 448
    engine = Engine(config, loud)
    engine.add_request(spec(tokens(20), 2))
    engine.step()
    assert engine.stack.store.num_saturated > 0
    quiet = build(formats("fp8_e4m3", "fp8_e4m3"))
    Runner(quiet).one(tokens(20), 2)
    assert quiet.stack.store.num_saturated == 0
