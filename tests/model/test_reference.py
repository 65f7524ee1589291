"""Our logits and tokens against those of transformers on the same weights, in fp32."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from model_compare import kl_to, max_difference
from model_texts import PROMPTS
from tiny_folders import CASES, TOKENS, write_case

from workbench.model.assemble import assemble
from workbench.model.convert import convert
from workbench.model.hf_loader import HfSource
from workbench.model.load import LoadedModel
from workbench.model.naive import naive_greedy, naive_logits
from workbench.model.store import StoredWeights

Real = Callable[[str], LoadedModel]
Reference = dict[str, np.ndarray]


def test_logits_over_512_tokens_equal_transformers(real_model: Real, reference: Reference) -> None:
    model = real_model("fp32")
    logits = naive_logits(model.decoder, reference["long_ids"].tolist())
    columns = logits[:, :: logits.shape[1] // 64][:, :64]
    assert max_difference(columns, reference["long_columns"]) <= 1e-3
    assert max_difference(logits.logsumexp(-1), reference["long_lse"]) <= 1e-3
    assert (logits.argmax(-1).numpy() == reference["long_best"]).mean() == 1.0


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_64_greedy_tokens_equal_transformers(
    real_model: Real, reference: Reference, index: int
) -> None:
    """Each token is the best one after the reference's tokens before it, so by induction equal."""
    model = real_model("fp32")
    prompt, new = reference[f"prompt_{index}"].tolist(), reference[f"greedy_{index}"].tolist()
    logits = naive_logits(model.decoder, prompt + new[:-1])
    assert logits[len(prompt) - 1 :].argmax(-1).tolist() == new


def test_naive_greedy_equals_transformers(real_model: Real, reference: Reference) -> None:
    model = real_model("fp32")
    new, margins = naive_greedy(model.decoder, reference["prompt_0"].tolist(), 6)
    assert new == reference["greedy_0"][:6].tolist()
    assert len(margins) == 6 and min(margins) > 0


@pytest.fixture(scope="module")
def exact(real_model: Real, reference: Reference) -> torch.Tensor:
    return naive_logits(real_model("fp32").decoder, reference["long_ids"].tolist()[:96])


@pytest.mark.parametrize("weight_format", ["as_stored", "int8", "bf16", "auto"])
def test_kl_to_fp32_is_small(
    real_model: Real, reference: Reference, exact: torch.Tensor, weight_format: str
) -> None:
    ids = reference["long_ids"].tolist()[:96]
    kl = kl_to(exact, naive_logits(real_model(weight_format).decoder, ids))
    print(f"KL of {weight_format} weights to fp32: {kl:.5f}")
    assert kl <= 0.01


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_tiny_folders_equal_transformers(
    tmp_path: Path, reference: Reference, case: str, shards: int
) -> None:
    source = HfSource(write_case(tmp_path / case, case, shards=shards))
    result = convert(source, "as_stored")
    assert set(result.kinds.values()) == {"fp32"}
    decoder = assemble(
        source.arch,
        StoredWeights(result.tensors, result.kinds, ()),
        weight_format="fp32",
        identity=source.identity,
        device="cpu",
    )
    logits = naive_logits(decoder, TOKENS)
    assert max_difference(logits, reference[f"tiny_{case}"]) <= 1e-4
    assert torch.isfinite(logits).all()
