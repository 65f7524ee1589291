"""The decoder with experts gives transformers' logits for Qwen3-MoE with the same weights."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from workbench.model.arch import ModelArch
from workbench.model.naive import naive_logits
from workbench.spatial.devices.moe import expert_tensors
from workbench.spatial.devices.moe_arch import MoeArch
from workbench.spatial.devices.sources import moe_decoder, random_weights

SCRIPT = Path(__file__).parents[1] / "peers" / "moe_transformers.py"
BASE = ModelArch(
    name="random", num_layers=3, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
    intermediate_size=48, vocab_size=100, qk_norm=True, rms_eps=1e-6, rope_theta=1e6,
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("num_experts", "top_k", "seed"), [(6, 2, 0), (8, 3, 1), (4, 4, 2)])
def test_logits_equal_transformers(
    peers_python: Path, tmp_path: Path, num_experts: int, top_k: int, seed: int
) -> None:
    moe = MoeArch(BASE, num_experts=num_experts, top_k=top_k)
    stored = random_weights(BASE, seed, dense=False)
    for layer in range(BASE.num_layers):  # Qwen3 has one norm for all heads of a kind
        norms = stored.tensors[f"layers.{layer}.qk_norm"]
        norms[: BASE.num_heads], norms[BASE.num_heads :] = norms[0].clone(), norms[-1].clone()
    ids = np.random.default_rng(seed).integers(0, BASE.vocab_size, 40).tolist()
    np.savez(tmp_path / "weights.npz", **named(moe, stored.tensors, seed))
    request = {
        "config": config_of(moe), "weights": str(tmp_path / "weights.npz"), "ids": ids,
        "out": str(tmp_path / "logits.npy"),
    }  # fmt: skip
    done = subprocess.run(
        [str(peers_python), str(SCRIPT)], input=json.dumps(request), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = np.load(tmp_path / "logits.npy")
    ours = naive_logits(moe_decoder(moe, stored, seed), ids).numpy()
    difference = float(np.abs(ours - theirs).max())
    version = json.loads(done.stdout)["transformers"]
    print(
        f"largest difference of {ours.shape} logits from transformers {version}: {difference:.1e}"
    )
    assert difference <= 1e-4 < np.abs(theirs).max()


def config_of(moe: MoeArch) -> dict[str, object]:
    """The same shape as transformers names it."""
    base = moe.base
    return dict(
        vocab_size=base.vocab_size, hidden_size=base.hidden_size,
        num_hidden_layers=base.num_layers, num_attention_heads=base.num_heads,
        num_key_value_heads=base.num_kv_heads, head_dim=base.head_dim,
        moe_intermediate_size=base.intermediate_size, num_experts=moe.num_experts,
        num_experts_per_tok=moe.top_k, norm_topk_prob=True, decoder_sparse_step=1,
        mlp_only_layers=[], rms_norm_eps=base.rms_eps, tie_word_embeddings=base.tie_embeddings,
        attention_bias=False, rope_theta=base.rope_theta,
    )  # fmt: skip


def named(moe: MoeArch, tensors: dict[str, Tensor], seed: int) -> dict[str, np.ndarray]:
    """Our weights under transformers' names."""
    base = moe.base
    found = {
        "model.embed_tokens.weight": tensors["embed.weight"],
        "model.norm.weight": tensors["final_norm"],
        "lm_head.weight": tensors["head.weight"],
    }
    for layer in range(base.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        q, k, v = tensors[f"{ours}qkv.weight"].split([base.q_size, base.kv_size, base.kv_size])
        router, gate_up, down = expert_tensors(moe, layer, seed)
        for name, value in {
            "self_attn.q_proj.weight": q, "self_attn.k_proj.weight": k,
            "self_attn.v_proj.weight": v, "self_attn.o_proj.weight": tensors[f"{ours}o.weight"],
            "self_attn.q_norm.weight": tensors[f"{ours}qk_norm"][0],
            "self_attn.k_norm.weight": tensors[f"{ours}qk_norm"][-1],
            "input_layernorm.weight": tensors[f"{ours}attn_norm"],
            "post_attention_layernorm.weight": tensors[f"{ours}mlp_norm"],
            "mlp.gate.weight": router, "mlp.experts.gate_up_proj": gate_up,
            "mlp.experts.down_proj": down,
        }.items():  # fmt: skip
            found[theirs + name] = value
    return {name: torch.as_tensor(value).float().numpy() for name, value in found.items()}
