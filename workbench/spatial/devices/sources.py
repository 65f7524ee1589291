"""Where every rank takes its weights from: a seed or the default model's converted file."""

from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

from workbench.errors import ModelError
from workbench.model.arch import ModelArch
from workbench.model.assemble import assemble, fingerprint_of
from workbench.model.decoder import Decoder, DecoderWeights, Layer
from workbench.model.store import ConvertedStore, StoredWeights
from workbench.model.weights import DenseLinear, Embedding
from workbench.spatial.devices.moe import Experts, MoeBlock, NoGate, expert_tensors
from workbench.spatial.devices.moe_arch import MoeArch


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder that any process can build alike, in fp32.

    `path` names a loaded model's file or folder; without one, `arch` is filled with random numbers
    of `seed`. `num_experts` > 0 makes it a Qwen3-MoE decoder. Raises ValueError where neither or
    both of `path` and `arch` are given, or where the experts' numbers are out of range.
    """

    path: str = ""
    arch: ModelArch | None = None
    seed: int = 0
    num_experts: int = 0
    top_k: int = 2

    def __post_init__(self) -> None:
        if bool(self.path) == (self.arch is not None):
            raise ValueError(
                f"path = {self.path!r} and arch = {self.arch!r}: exactly one of them is needed"
            )
        if self.num_experts:
            if self.arch is None:
                raise ValueError("num_experts needs random weights: give `arch`, not `path`")
            MoeArch(self.arch, self.num_experts, self.top_k)

    @property
    def moe(self) -> MoeArch | None:
        """The experts' shape, where there are experts."""
        if self.arch is None or not self.num_experts:
            return None
        return MoeArch(self.arch, self.num_experts, self.top_k)

    def read(self) -> tuple[ModelArch, StoredWeights]:
        """Architecture and fp32 weights; of a file only what is touched is read from the disk.

        ModelError where the model at `path` was never loaded in fp32.
        """
        if self.arch is not None:
            return self.arch, random_weights(self.arch, self.seed, dense=not self.num_experts)
        from pathlib import Path

        store = ConvertedStore()
        identity = store.identity_of(Path(self.path))
        about = store.load_about(identity) if identity else None
        stored = store.load_weights(identity, "fp32") if identity else None
        if about is None or stored is None:
            raise ModelError(
                f"{self.path} has no fp32 weights in {store.folder}: load it once in that format"
            )
        return about[0].arch, stored

    def known_arch(self) -> ModelArch:
        """The architecture; of a file it is read."""
        return self.arch if self.arch is not None else self.read()[0]


def one_process(source: ModelSource) -> Decoder:
    """The whole decoder in this process, by the project's own loader: what the ranks must equal."""
    arch, stored = source.read()
    moe = source.moe
    if moe is None:
        return assemble(arch, stored, weight_format="fp32", identity="devices", device="cpu")
    return moe_decoder(moe, stored, source.seed)


def moe_decoder(moe: MoeArch, stored: StoredWeights, seed: int) -> Decoder:
    """A Qwen3-MoE decoder with all experts in this process."""

    def block(layer: int) -> MoeBlock:
        router, gate_up, down = expert_tensors(moe, layer, seed)
        return MoeBlock(router, Experts(gate_up, down, 0), moe.top_k)

    return Decoder(
        moe.base,
        moe_weights(moe.base, stored, block),
        weight_format="fp32",
        fingerprint=fingerprint_of(f"moe:{seed}:{moe}", "fp32"),
        compute_dtype=torch.float32,
    )


def moe_weights(
    arch: ModelArch, stored: StoredWeights, block: Callable[[int], MoeBlock]
) -> DecoderWeights:
    """All weights, with `block(layer)` in place of every layer's MLP."""
    tensors = stored.tensors

    def layer(index: int) -> Layer:
        prefix = f"layers.{index}."
        return Layer(
            attn_norm=tensors[prefix + "attn_norm"],
            qkv=DenseLinear(tensors[prefix + "qkv.weight"], tensors.get(prefix + "qkv.bias")),
            o=DenseLinear(tensors[prefix + "o.weight"], tensors.get(prefix + "o.bias")),
            mlp_norm=tensors[prefix + "mlp_norm"],
            gate_up=NoGate(arch.hidden_size),
            down=block(index),
            qk_norm=tensors.get(prefix + "qk_norm"),
        )

    return DecoderWeights(
        embed=Embedding(tensors["embed.weight"], None, torch.float32),
        layers=tuple(layer(index) for index in range(arch.num_layers)),
        final_norm=tensors["final_norm"],
        head=DenseLinear(tensors.get("head.weight", tensors["embed.weight"])),
        head_shares_embedding="head.weight" not in tensors,
    )


def random_weights(arch: ModelArch, seed: int, *, dense: bool = True) -> StoredWeights:
    """Random fp32 weights under the names of a converted file; without `dense` no MLP."""
    make = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}

    def draw(name: str, *size: int, scale: float = 1.0, offset: float = 0.0) -> None:
        values = torch.randn(*size, generator=make)
        tensors[name] = values.mul_(scale * size[-1] ** -0.5).add_(offset)

    hidden, inner = arch.hidden_size, arch.intermediate_size
    draw("embed.weight", arch.vocab_size, hidden, scale=0.5 if arch.tie_embeddings else 1.0)
    if not arch.tie_embeddings:
        draw("head.weight", arch.vocab_size, hidden, scale=3.0)
    draw("final_norm", hidden, offset=1.0)
    for prefix in (f"layers.{index}." for index in range(arch.num_layers)):
        rows = arch.q_size + 2 * arch.kv_size
        draw(prefix + "attn_norm", hidden, offset=1.0)
        draw(prefix + "mlp_norm", hidden, offset=1.0)
        draw(prefix + "qkv.weight", rows, hidden, scale=2.0)
        draw(prefix + "o.weight", hidden, arch.q_size)
        if arch.attention_bias:
            draw(prefix + "qkv.bias", rows)
        if arch.output_bias:
            draw(prefix + "o.bias", hidden)
        if arch.qk_norm:
            draw(prefix + "qk_norm", arch.num_heads + arch.num_kv_heads, arch.head_dim, offset=1.0)
        if dense:
            draw(prefix + "gate_up.weight", 2 * inner, hidden)
            draw(prefix + "down.weight", hidden, inner)
    kinds = {name.removesuffix(".weight"): "fp32" for name in tensors if name.endswith(".weight")}
    return StoredWeights(tensors, kinds, ())
