"""The parts of a step add up to its wall time, so that a stacked bar shows no time twice."""

import pytest

from tests.engine.harness import build, spec, tokens
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.random_launch import random_model
from workbench.request import RequestSpec, SamplingParams


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
def test_parts_add_up(kv_format: str) -> None:
    changes = {"cache.k_format": kv_format, "cache.v_format": kv_format}
    engine = Engine(replace_settings(EngineConfig(), changes), random_model(2))
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    engine.add_request(RequestSpec(token_ids=list(range(40)), sampling=params))
    while engine.has_work():
        engine.step()
        view = engine.recorder.last
        assert view is not None
        parts = (
            view.attention_ms
            + view.linears_ms
            + view.gather_ms
            + view.dequant_ms
            + view.scheduler_ms
            + view.other_ms
        )
        assert parts == pytest.approx(view.wall_ms, rel=1e-6)


@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_prefill_is_known_text_whatever_the_chunk(chunk: int) -> None:
    """A prompt of 11 in chunks of 1 is 11 tokens of prefill; only sampled tokens are decoded."""
    engine = build({"scheduling.chunk_tokens": chunk})
    engine.add_request(spec(tokens(11), 6))
    prefill = decode = 0
    while engine.has_work():
        engine.step()
        view = engine.recorder.last
        prefill += view.num_prefill_tokens
        decode += view.num_decode_tokens
    assert (prefill, decode) == (11, 5)  # the sixth token is sampled and not computed
    assert sum(engine.metrics.prefill_tokens.values()) == 11
    assert sum(engine.metrics.decode_tokens.values()) == 5


def test_the_last_token_of_a_hit_is_prefill_and_a_recomputed_one_too() -> None:
    engine = build({"scheduling.chunk_tokens": 1})
    for _ in range(2):
        engine.add_request(spec(tokens(13), 4))
        engine.step()
        first = engine.recorder.last
        assert (first.num_prefill_tokens, first.num_decode_tokens) == (1, 0)
        while engine.has_work():
            engine.step()
    engine.apply({"cache.prefix_caching": False})
    engine.add_request(spec(tokens(4), 8))
    while engine.scheduler.running == [] or engine.scheduler.running[0].num_output_tokens < 4:
        engine.step()
    engine.scheduler.preempt_all("test")
    prefill = 0
    while engine.has_work():
        engine.step()
        prefill += engine.recorder.last.num_prefill_tokens
    assert prefill == 7  # the prompt and three outputs again; the fourth was never computed
