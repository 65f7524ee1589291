"""All logits of 512 tokens and 8 x 64 greedy tokens, computed by transformers in this run."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from model_compare import max_difference
from model_texts import PROMPTS

from workbench.model.load import LoadedModel
from workbench.model.naive import naive_logits

SCRIPT = Path(__file__).parents[1] / "peers" / "logits_transformers.py"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_logits_and_greedy_tokens_equal_transformers(
    peers_python: Path,
    gguf_path: Path,
    real_model: Callable[[str], LoadedModel],
    reference: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    decoder = real_model("fp32").decoder
    ids = reference["long_ids"].tolist()
    prompts = [reference[f"prompt_{index}"].tolist() for index in range(len(PROMPTS))]
    request = {
        "model": str(gguf_path),
        "sequences": [ids],
        "prompts": prompts,
        "num_new": 64,
        "out": str(tmp_path / "logits.npz"),
    }
    done = subprocess.run(
        [str(peers_python), str(SCRIPT)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    difference = max_difference(naive_logits(decoder, ids), np.load(tmp_path / "logits.npz")["0"])
    print(f"largest difference of {len(ids)} x {decoder.arch.vocab_size} logits: {difference:.1e}")
    assert difference <= 1e-3
    for prompt, new in zip(prompts, answer["greedy"], strict=True):
        logits = naive_logits(decoder, prompt + new[:-1])
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == new
