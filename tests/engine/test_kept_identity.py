"""A restart on kept pages hits them if nothing that shaped them has changed, and else none.

Each model below differs from the first in one field of the identity alone: the fingerprint of its
weights is the first one's, except where the weights are what has changed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engine.harness import Runner, build, pages, spec, tokens
from workbench.model.arch import RopeScaling
from workbench.model.load import LoadedModel
from workbench.model.random_launch import random_model
from workbench.model.random_model import random_decoder

PROMPT = [token % 120 for token in tokens(60)]
ROOM = {"cache.hbm_budget_mib": pages(64), "cache.grouping": "layer"}
WHOLE = 56  # of 60 tokens, the blocks that may be hit


@functools.cache
def first() -> LoadedModel:
    return random_model(2)


def variant(own_weights: bool = False, **changes: Any) -> LoadedModel:
    """The first model with other options; random values are drawn from the seed alone."""
    base, tokenizer = first(), first().tokenizer
    given = {"vocab_size": tokenizer.vocab_size, "max_position": 4096, "eos_ids": tokenizer.eos_ids}
    decoder = random_decoder(2, **(given | changes))
    if not own_weights:
        decoder.fingerprint = base.decoder.fingerprint
    return dataclasses.replace(base, decoder=decoder, arch=decoder.arch)


def other_tokenizer() -> LoadedModel:
    base = first()
    tokenizer = random_model(2).tokenizer
    tokenizer.raw.add_special_tokens(["<|more|>"])
    named = type(tokenizer)(tokenizer.raw, tokenizer.info)
    assert named.fingerprint != base.tokenizer.fingerprint
    return dataclasses.replace(base, tokenizer=named)


SCALED = RopeScaling(kind="linear", factor=2.0)
MODELS: dict[str, Callable[[], LoadedModel]] = {
    "weights": lambda: variant(own_weights=True, seed=1),
    "dtype": lambda: variant(dtype=torch.bfloat16),
    "rope_theta": lambda: variant(rope_theta=500_000.0),
    "rope_scaling": lambda: variant(rope_scaling=SCALED),
    "rope_scaling_factor": lambda: variant(rope_scaling=dataclasses.replace(SCALED, factor=4.0)),
    "tokenizer": other_tokenizer,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "k_format": {"cache.k_format": "int8"},
    "v_format": {"cache.v_format": "bf16"},
    "layer_plan": {"cache.layer_plan": "1=int8"},
    "grouping": {"cache.grouping": "model"},
    "block_size": {"cache.block_size": 8, "cache.hbm_budget_mib": pages(64, block_size=8)},
    "positions": {"retention.positions": "compact"},
}
NEUTRAL: dict[str, dict[str, Any]] = {
    "nothing": {},
    "schedule": {"scheduling.chunk_tokens": 7, "scheduling.token_budget": 11},
    "budget": {"cache.hbm_budget_mib": pages(40)},
    "index": {"cache.index": "radix", "cache.eviction": "lfu"},
    "dram": {"tiers.dram_mib": 0.5},
}


@pytest.fixture(scope="module", params=["G3", pytest.param("G4", marks=pytest.mark.long)])
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The settings of a tier that a first engine has filled and left."""
    folder = str(tmp_path_factory.mktemp("kept"))
    where = ({"tiers.disk_mib": 8.0, "tiers.disk_path": folder, "tiers.disk_keep": True}
             if request.param == "G3" else {"tiers.object_url": folder})  # fmt: skip
    assert ask(where, first()) == (0, 0)
    return where


def ask(
    where: dict[str, Any],
    loaded: LoadedModel,
    changes: dict[str, Any] | None = None,
    salt: str = "",
) -> tuple[int, int]:
    """Tokens that a new engine's first request hits, and pages that it loaded."""
    settings = ROOM | where | {"tiers.write": "through"} | (changes or {})
    runner = Runner(build(settings, loaded=loaded))
    runner.engine.hierarchy.wait_io()
    request_id = runner.engine.add_request(spec(PROMPT, 2, salt=salt))
    request = runner.engine.requests[request_id]
    runner.drain()
    runner.engine.hierarchy.wait_io()
    found = request.num_cached_tokens, runner.engine.fetch_counters.num_loaded_pages
    runner.engine.close()
    return found


def hits(where: dict[str, Any], changes: dict[str, Any] | None = None, salt: str = "") -> int:
    return ask(where, first(), changes, salt)[0]


@pytest.mark.parametrize("name", MODELS)
def test_another_model_hits_nothing(kept: dict[str, Any], name: str) -> None:
    other = MODELS[name]()
    same = other.decoder.fingerprint == first().decoder.fingerprint
    assert same == (name != "weights"), "the field that the test is about is the only one"
    assert ask(kept, other) == (0, 0)
    assert ask(kept, other)[0] == WHOLE, "but its own"
    assert hits(kept) == WHOLE, "the first one's are still there"


@pytest.mark.parametrize("name", SETTINGS)
def test_another_shape_hits_nothing(kept: dict[str, Any], name: str) -> None:
    assert ask(kept, first(), SETTINGS[name]) == (0, 0)
    assert hits(kept, SETTINGS[name]) >= WHOLE - 4, "but its own"
    assert hits(kept) == WHOLE, "the first one's are still there"


def test_another_tenant_hits_nothing(kept: dict[str, Any]) -> None:
    assert ask(kept, first(), salt="tenant") == (0, 0)
    assert hits(kept, salt="tenant") == WHOLE and hits(kept) == WHOLE


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_shapes_no_bytes_hits_all(kept: dict[str, Any], name: str) -> None:
    assert hits(kept, NEUTRAL[name]) == WHOLE


def test_the_same_model_loaded_again_hits_all(kept: dict[str, Any]) -> None:
    assert ask(kept, random_model(2))[0] == WHOLE
    assert ask(kept, variant())[0] == WHOLE, "and so does one that was built in the tests' way"
