"""Logits of a tiny Qwen3-MoE by transformers in fp32; runs in the peers' environment.

Reads one JSON object from standard input:
    {"config": {...}, "weights": path of an .npz under transformers' names, "ids": [...],
     "out": path of an .npy for the logits fp32 [T, vocab]}
and prints the version used. Every weight of the model has to be given, and no other.
"""

import json
import sys

import numpy as np
import torch
import transformers


def main() -> None:
    """Answer one request from standard input."""
    request = json.load(sys.stdin)
    config = transformers.Qwen3MoeConfig(**request["config"], attn_implementation="eager")
    network = transformers.Qwen3MoeForCausalLM(config).float().eval()
    wanted = network.state_dict()
    with np.load(request["weights"]) as file:
        given = {name: torch.from_numpy(file[name]) for name in file.files}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}.mlp.experts."
        if f"{prefix}gate_up_proj" not in wanted:  # one tensor an expert before transformers 5
            for name in ("gate_up_proj", "down_proj"):
                for expert, weight in enumerate(given.pop(prefix + name)):
                    parts = {"down_proj": weight}
                    if name == "gate_up_proj":
                        parts = dict(zip(("gate_proj", "up_proj"), weight.chunk(2), strict=True))
                    for part, values in parts.items():
                        given[f"{prefix}{expert}.{part}.weight"] = values
    network.load_state_dict(given, strict=True)
    with torch.inference_mode():
        logits = network(torch.tensor([request["ids"]])).logits[0]
    np.save(request["out"], logits.numpy())
    print(json.dumps({"transformers": transformers.__version__}))


if __name__ == "__main__":
    main()
