"""Logits, greedy tokens and token ids by transformers in fp32; runs in the peers' environment.

Reads one JSON object from standard input:
    {"model": folder or .gguf, "texts": [...], "sequences": [[ids]], "prompts": [[ids]],
     "num_new": 64, "out": path of an .npz for the sequences' logits (optional)}
and prints one JSON object with `text_ids`, `greedy` and the versions used.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers


def load(model: str) -> tuple[Any, Any]:
    """Model in fp32 and its tokenizer (None when the folder has none)."""
    path = Path(model)
    folder, extra = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
    network = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, local_files_only=True, attn_implementation="sdpa", **extra
    )
    tokenizer = None
    if extra or (path / "tokenizer.json").exists():
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, **extra
        )
    # Without an end token, generation runs to the length asked for and masks no logit.
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    return network.eval(), tokenizer


def logits_of(network: Any, ids: list[int]) -> np.ndarray:
    """Logits fp32 [T, vocab] of one sequence."""
    with torch.inference_mode():
        return network(torch.tensor([ids])).logits[0].float().numpy()


def greedy(network: Any, ids: list[int], num_new: int) -> list[int]:
    """`num_new` greedy tokens, the end token ignored."""
    with torch.inference_mode():
        out = network.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=num_new,
        )
    return out[0, len(ids) :].tolist()


def main() -> None:
    """Answer one request from standard input."""
    request = json.load(sys.stdin)
    network, tokenizer = load(request["model"])
    if "out" in request:
        rows = {str(i): logits_of(network, ids) for i, ids in enumerate(request["sequences"])}
        np.savez(request["out"], **rows)
    texts = request.get("texts", [])
    answer = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "text_ids": [tokenizer.encode(text, add_special_tokens=False) for text in texts],
        "greedy": [
            greedy(network, ids, request.get("num_new", 64)) for ids in request.get("prompts", [])
        ],
    }
    if "messages" in request:
        text = tokenizer.apply_chat_template(
            request["messages"], tokenize=False, add_generation_prompt=True
        )
        answer["chat_ids"] = tokenizer.encode(text, add_special_tokens=False)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
