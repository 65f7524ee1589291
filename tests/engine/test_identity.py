"""Two engines find each other's blocks if and only if everything that shaped the bytes is equal.

A tier outlives a rebuild and may be shared one day, so the keys alone must keep contents apart.
"""

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.harness import SMALL, Runner, build, model, spec, tokens
from tests.model.tiny_folders import tiny_tokenizer, write_case
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.load import LoadedModel, load_model

FAST = settings(max_examples=25, deadline=None, derandomize=True, database=None,
                suppress_health_check=list(HealthCheck))  # fmt: skip
PER_LAYER = {"cache.grouping": "layer"}
PROMPT = tokens(33)  # two full blocks of 16, eight of 4

SHAPING: tuple[dict[str, Any], ...] = (
    {},
    {"cache.k_format": "int8"},
    {"cache.v_format": "int8"},
    {"cache.k_format": "int8", "cache.v_format": "int8"},
    {"cache.k_format": "int8", "cache.v_format": "int4"},
    {"cache.k_format": "kivi2", "cache.v_format": "kivi2", "cache.block_size": 16},
    {"cache.k_format": "kivi2", "cache.v_format": "kivi2", "cache.block_size": 16,
     "cache.kivi_group": 8},
    {"cache.k_format": "int8", "cache.residual_tokens": 8},
    {"cache.k_format": "int8", "cache.residual_tokens": 16},
    {"cache.grouping": "halves"},
    {"cache.grouping": "head"},
    PER_LAYER,
    PER_LAYER | {"cache.layer_plan": "0=int8"},
    PER_LAYER | {"cache.layer_plan": "1=int8"},
    PER_LAYER | {"cache.layer_plan": "0=int8/fp32"},
    {"cache.block_size": 8},
    {"retention.positions": "compact"},
)  # fmt: skip
NEUTRAL: tuple[dict[str, Any], ...] = (
    {},
    {"cache.hbm_budget_mib": 0.5},
    {"cache.index": "radix", "cache.eviction": "lfu", "cache.reuse": "exact"},
    {"scheduling.chunk_tokens": 5, "scheduling.order": "priority"},
    {"tiers.dram_mib": 0.5},
    {"retention.policy": "sink+window", "retention.budget_tokens": 128},
)


@functools.cache
def row_keys(shaping: int, neutral: int, salt: str, seed: int) -> frozenset[bytes]:
    """Keys under which an engine of its own publishes the prompt's blocks."""
    changes = SHAPING[shaping] | NEUTRAL[neutral]
    return published(Runner(build(changes | _room(changes), loaded=model(seed=seed))), salt)


def _room(changes: dict[str, Any]) -> dict[str, Any]:
    return {"cache.hbm_budget_mib": 0.5} if "cache.block_size" in changes else {}


def published(runner: Runner, salt: str = "") -> frozenset[bytes]:
    runner.one([token % 60 for token in PROMPT], 1, salt=salt)
    keys = frozenset(row.key for row in runner.engine.stack.pool.index.rows())
    assert keys
    return keys


MADE = st.tuples(st.integers(0, len(SHAPING) - 1), st.integers(0, len(NEUTRAL) - 1),
                 st.sampled_from(["", "tenant"]), st.integers(0, 1))  # fmt: skip


@FAST
@given(one=MADE, other=MADE)
def test_blocks_are_shared_if_and_only_if_everything_is_equal(one: tuple, other: tuple) -> None:
    same = (one[0], *one[2:]) == (other[0], *other[2:])
    mine, theirs = row_keys(*one), row_keys(*other)
    assert mine == theirs if same else not mine & theirs


@pytest.mark.parametrize("at", range(len(SHAPING)))
def test_each_way_of_shaping_bytes_has_keys_of_its_own(at: int) -> None:
    others = [row_keys(other, 0, "", 0) for other in range(len(SHAPING)) if other != at]
    assert not row_keys(at, 0, "", 0) & frozenset().union(*others)


def test_weights_in_another_format_share_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path / "cache"))
    folder = write_case(tmp_path / "tiny", "llama_gqa_untied")
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    config = replace_settings(EngineConfig(), SMALL)

    def keys(weight_format: str) -> frozenset[bytes]:
        loaded: LoadedModel = load_model(str(folder), weight_format)
        engine = Engine(config, loaded)
        engine.add_request(spec([token % 60 for token in PROMPT], 1))
        while engine.has_work():
            engine.step()
        return frozenset(row.key for row in engine.stack.pool.index.rows())

    found = {name: keys(name) for name in ("as_stored", "int8", "bf16", "fp32", "auto")}
    assert {len(each) for each in found.values()} == {8}
    assert len(frozenset().union(*found.values())) == 8 * len(found)
    assert keys("int8") == found["int8"]
