"""Logits of known tokens out of the engine: the naive loop's, whatever the chunks."""

import numpy as np
import pytest
import torch

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.errors import RequestError
from workbench.model.naive import naive_logits
from workbench.request import RequestSpec, SamplingParams


def exact_engine(model, chunk: int) -> Engine:
    changes = {
        "cache.k_format": "fp32", "cache.v_format": "fp32", "cache.hbm_budget_mib": 2,
        "scheduling.chunk_tokens": chunk, "cache.prefix_caching": False,
    }  # fmt: skip
    return Engine(replace_settings(EngineConfig(), changes), model)


def run(engine: Engine, specs: list[RequestSpec]) -> dict[str, tuple[np.ndarray, torch.Tensor]]:
    """Tapped (positions, logits) of each request."""
    seen: dict[str, list[tuple[np.ndarray, torch.Tensor]]] = {}
    engine.tap = lambda request, positions, logits: seen.setdefault(request.request_id, []).append(
        (positions, logits.clone())
    )
    for spec in specs:
        engine.add_request(spec)
    while engine.has_work():
        engine.step()
    return {
        name: (np.concatenate([p for p, _ in parts]), torch.cat([rows for _, rows in parts]))
        for name, parts in seen.items()
    }


def spec(name: str, tokens: list[int], start: int | None, **sampling) -> RequestSpec:
    params = SamplingParams(ignore_eos=True, **sampling)
    return RequestSpec(request_id=name, token_ids=tokens, sampling=params, logits_from=start)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("start", [0, 13, 39])
def test_tapped_rows_are_the_naive_loops(model, chunk: int, start: int):
    tokens = list(range(40, 80))
    engine = exact_engine(model, chunk)
    positions, logits = run(engine, [spec("a", tokens, start, max_tokens=1)])["a"]
    assert positions.tolist() == list(range(start, 40))
    expected = naive_logits(model.decoder, tokens)[start:]
    assert torch.allclose(logits, expected, atol=2e-4)


def test_sampling_is_the_same_with_and_without_a_tap(model):
    specs = [
        spec("a", list(range(30, 70)), 5, max_tokens=6),
        spec("b", list(range(90, 110)), None, max_tokens=6, temperature=0.8, seed=3),
        spec("c", list(range(10, 60)), 0, max_tokens=6, temperature=0.8, seed=4),
    ]
    outputs = []
    for tapping in (False, True):
        engine = exact_engine(model, 16)
        if tapping:
            rows = run(engine, specs)
            # new tokens are known ones at the next step
            assert rows.keys() == {"a", "c"} and len(rows["c"][0]) == 50 + 5
        else:
            for item in specs:
                engine.add_request(item)
            while engine.has_work():
                engine.step()
        outputs.append({name: request.token_ids for name, request in engine.finished.items()})
    assert outputs[0] == outputs[1]


def test_a_negative_start_is_refused():
    with pytest.raises(RequestError, match="logits_from = -1 is out of range: 0 or more"):
        RequestSpec(token_ids=[1], logits_from=-1)
