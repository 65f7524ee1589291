"""I9 on the real model in fp32: one tiny case in each run, more in the long ones."""

from functools import cache
from typing import Any

import pytest

from tests.engine.harness import Runner, assert_naive
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.fetch import cached_path
from workbench.model.load import LoadedModel, load_model

pytestmark = pytest.mark.skipif(cached_path() is None, reason="run: workbench model fetch")

EXACT: dict[str, Any] = {"cache.k_format": "fp32", "cache.v_format": "fp32",
                         "model.weight_format": "fp32"}  # fmt: skip


@cache
def real() -> LoadedModel:
    return load_model(weight_format="fp32")


def build(changes: dict[str, Any]) -> Runner:
    config = replace_settings(EngineConfig(), EXACT | changes)
    return Runner(Engine(config, real(), verify_bytes=True))


def ids(text: str) -> list[int]:
    return real().tokenizer.encode(text)


def serve(runner: Runner, prompts: list[str], max_tokens: int) -> None:
    names = [runner.add(ids(prompt), max_tokens) for prompt in prompts]
    runner.drain()
    for name, prompt in zip(names, prompts, strict=True):
        assert len(runner.outputs[name]) == max_tokens, runner.errors
        assert_naive(real(), ids(prompt), runner.outputs[name])


def test_a_short_text() -> None:
    serve(build({"cache.hbm_budget_mib": 16.0}), ["The capital of France is"], 6)


PROMPTS = [
    "Once upon a time there was a small engine that",
    "Once upon a time there was a small engine that could not stop counting its blocks because",
    "A cache is useful when",
    "List three uses of a prefix tree: first,",
]


@pytest.mark.long
@pytest.mark.parametrize("changes", [
    {}, {"cache.grouping": "halves"}, {"scheduling.chunk_tokens": 5},
    {"cache.block_size": 4, "cache.hbm_budget_mib": 3.0, "scheduling.admit_whole_prompt": False},
    {"cache.block_size": 4, "cache.hbm_budget_mib": 3.0, "scheduling.admit_whole_prompt": False,
     "scheduling.preemption": "swap", "tiers.dram_mib": 32.0, "tiers.gate": False},
], ids=["plain", "halves", "chunks", "recompute", "swap"])  # fmt: skip
def test_texts_under_any_schedule(changes: dict[str, Any]) -> None:
    serve(build({"cache.hbm_budget_mib": 32.0} | changes), PROMPTS, 32)


@pytest.mark.long
def test_a_text_that_comes_back_from_the_disk() -> None:
    runner = build({"cache.hbm_budget_mib": 14.0, "cache.block_size": 4, "tiers.disk_mib": 64.0,
                    "tiers.gate": False})  # fmt: skip
    long = ids(" ".join(PROMPTS * 4)[:900])
    first = runner.one(long, 12)
    runner.one(ids(" ".join(PROMPTS[::-1] * 4)[:900]), 12)
    runner.engine.hierarchy.wait_io()
    assert runner.one(long, 12) == first
    assert runner.engine.fetcher.counters.num_loaded_pages > 0
    assert_naive(real(), long, first)
    runner.engine.close()
