"""What the peers of `workbench bench quality-peers` share; runs in their environment.

A script reads one JSON object from standard input and prints JSON lines: `{"progress": text}` while
it works, then `{"answer": {...}}` once.
"""

import json
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

transformers.utils.logging.disable_progress_bar()


def tell(text: str) -> None:
    """One line of progress."""
    print(json.dumps({"progress": text}), flush=True)


def answer(**fields: Any) -> None:
    """The last line."""
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    print(json.dumps({"answer": {"versions": versions, **fields}}), flush=True)


def load(folder: str, threads: int, attention: str) -> Any:
    """The model in fp32."""
    torch.set_num_threads(threads)
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, attn_implementation=attention
    )
    return network.eval()


def read_context(network: Any, ids: list[int], cache: Any) -> None:
    """Run the first tokens of a window into a cache; their logits are not wanted."""
    network.model(torch.tensor([ids]), past_key_values=cache, use_cache=True)


def log_rows(network: Any, ids: list[int], cache: Any, context: int, step: int) -> Tensor:
    """Log-probabilities fp32 [len(ids), vocab] of the tokens that follow a context of a cache.

    Positions count from the window's start, also where a press has made the cache shorter.
    """
    rows = []
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        positions = torch.arange(context + start, context + start + len(part))
        out = network(
            torch.tensor([part]),
            past_key_values=cache,
            position_ids=positions[None],
            use_cache=True,
        )
        rows.append(torch.log_softmax(out.logits[0].float(), -1))
    return torch.cat(rows)


def compare(full: Tensor, other: Tensor) -> tuple[list[float], list[bool]]:
    """KL(p_full || p_other) in nats and top-1 agreement of each row but the last.

    The last row predicts nothing that the window knows.
    """
    kl = (full.exp() * (full - other)).sum(-1).clamp(min=0)[:-1]
    same = (full.argmax(-1) == other.argmax(-1))[:-1]
    return kl.double().tolist(), same.tolist()


def as_bits(kept: np.ndarray) -> np.ndarray:
    """Booleans as packed bytes along the last axis."""
    return np.packbits(kept, axis=-1)
