"""Whole engines on the Triton kernels under the interpreter, beside the same on the torch path.

Prints JSON: for each case the largest difference of a logit, and whether the tokens are the same.
Run with TRITON_INTERPRET=1, on a CPU.
"""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch
from kvkernels import bounds, reference, triton_backend, triton_bounds

from tests.engine.harness import Runner, build, tokens
from workbench.cache import page_bounds, page_store
from workbench.engine.calibrating import calibrate
from workbench.model.load import LoadedModel
from workbench.model.random_launch import random_model
from workbench.model.random_model import random_decoder

BASE: dict[str, Any] = {"cache.block_size": 16, "cache.hbm_budget_mib": 8.0}
QUEST: dict[str, Any] = {
    "retention.sparse": "quest", "retention.sparse_pages": 2, "retention.sparse_share": 0.0,
    "retention.sparse_dense_layers": 0, "retention.sink_tokens": 4,
}  # fmt: skip
LOW_RANK = {"cache.k_format": "lowrank", "cache.v_format": "int8"}
BELOW = {"cache.values": "dram", "tiers.dram_mib": 2.0}
CASES: dict[str, dict[str, Any]] = {
    "quest": QUEST | {"cache.k_format": "int8", "cache.v_format": "int8"},
    "quest by head": QUEST | {"cache.grouping": "head"},
    "quest in two formats": QUEST | {"cache.k_format": "kivi4", "cache.v_format": "int4",
                                     "cache.residual_tokens": 16},
    "joined heads": {"cache.k_format": "lowrank", "cache.v_format": "lowrank_int4",
                     "cache.rank": 96, "cache.rank_heads": 2},
    "shadow": LOW_RANK | BELOW | QUEST | {"retention.sparse": "landmarks"},
}  # fmt: skip


def wide_model() -> LoadedModel:
    """One layer whose heads are as wide as the kernels need."""
    small = random_model(1)
    decoder = random_decoder(1, head_dim=64, hidden_size=64,
                             vocab_size=small.tokenizer.vocab_size, max_position=4096,
                             eos_ids=small.tokenizer.eos_ids)  # fmt: skip
    return replace(small, decoder=decoder, arch=decoder.arch)


def run(
    model: LoadedModel, changes: dict[str, Any], backend: ModuleType, of_bounds: ModuleType
) -> tuple[list[int], torch.Tensor]:
    """Tokens and logits of one request on some kernels."""
    page_store.select = lambda device: backend  # type: ignore[attr-defined]
    page_bounds._kernels = lambda device: of_bounds
    runner = Runner(build(BASE | changes, loaded=model))
    forward, seen = runner.engine.stack.runner.run, []

    def ran(*args: Any, **more: Any) -> Any:
        result = forward(*args, **more)
        seen.append(result[0])
        return result

    runner.engine.stack.runner.run = ran  # type: ignore[method-assign]
    found = runner.one(tokens(50), 3)
    assert runner.engine.stack.store.kernels is backend
    return found, torch.cat(seen)


def main() -> None:
    """Print one line of JSON."""
    model, report = wide_model(), {}
    with TemporaryDirectory() as folder:
        file = calibrate(model, 256, Path(folder) / "own.safetensors").path
        for name, changes in CASES.items():
            own = changes | ({"cache.calibration": str(file)} if "cache.rank" in changes else {})
            here, logits = run(model, own, reference, bounds)
            there, others = run(model, own, triton_backend, triton_bounds)
            far = float((logits - others).abs().max())
            report[name] = {"same": here == there, "far": far, "size": float(logits.abs().max())}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
