"""A rank's share of the weights, as a `Stage`.

tensor    qkv rows of its heads │ o columns of its heads ─► all-reduce │ its rows of gate and up
          │ its columns of down ─► all-reduce │ its rows of the head; the embedding whole
pipeline  its layers; the embedding on the first rank, norm and head on the last
experts   all but the experts; its experts behind an exchange of rows
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from workbench.model.arch import ModelArch
from workbench.model.decoder import DecoderWeights, Layer
from workbench.model.store import StoredWeights
from workbench.model.weights import (
    DenseLinear,
    Embedding,
    Linear,
    dense_linear,
    gated_linear,
)
from workbench.spatial.devices.exchange import ExchangedBlock
from workbench.spatial.devices.links import Links
from workbench.spatial.devices.moe import Experts, MoeBlock, expert_tensors
from workbench.spatial.devices.moe_arch import MoeArch
from workbench.spatial.devices.placement import Placement, shares
from workbench.spatial.devices.sources import ModelSource, moe_weights
from workbench.spatial.devices.stage import Stage


class ReducedLinear:
    """A rank's columns of a matrix: products are summed over ranks, then bias and residual."""

    kind = "fp32"

    def __init__(self, part: Linear, bias: Tensor | None, links: Links) -> None:
        self.in_features, self.out_features = part.in_features, part.out_features
        self.weight_bytes = part.weight_bytes + (0 if bias is None else bias.nbytes)
        self._part, self._bias, self._links = part, bias, links

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [N, own columns] -> [N, out], the same on every rank."""
        out = self._links.all_reduce(self._part(x))
        if self._bias is not None:
            out.add_(self._bias)
        return out if residual is None else out.add_(residual)


def rank_stage(source: ModelSource, placement: Placement, links: Links) -> Stage:
    """This rank's decoder; ValueError where the placement is another model's."""
    arch, stored = source.read()
    placement.check(arch)
    device = links.device
    stored = replace(stored, tensors={k: v.to(device) for k, v in stored.tensors.items()})
    rank = links.rank
    if placement.kind == "tensor":
        own, weights = _tensor(arch, stored, placement, links)
    elif placement.kind == "pipeline":
        own, weights = _pipeline(arch, stored, placement, rank)
    else:
        own, weights = arch, _experts(source, stored, placement, links)
    stage = Stage(
        own, weights, weight_format="fp32", fingerprint="", compute_dtype=torch.float32,
        device=device,
    )  # fmt: skip
    stage.first = placement.kind != "pipeline" or rank == 0
    stage.last = placement.kind != "pipeline" or rank == placement.num_ranks - 1
    return stage


def vocab_share(arch: ModelArch, placement: Placement, rank: int) -> range:
    """Rows of the head whose logits this rank gives."""
    if placement.kind == "tensor":
        return shares(arch.vocab_size, placement.num_ranks)[rank]
    last = placement.kind == "experts" or rank == placement.num_ranks - 1
    return range(arch.vocab_size if last else 0)


def _tensor(
    arch: ModelArch, stored: StoredWeights, placement: Placement, links: Links
) -> tuple[ModelArch, DecoderWeights]:
    rank, heads = links.rank, placement.kv_heads[links.rank]
    inner = shares(arch.intermediate_size, placement.num_ranks)[rank]
    vocab = vocab_share(arch, placement, rank)
    own = replace(
        arch,
        num_heads=len(heads) * arch.group_size,
        num_kv_heads=len(heads),
        intermediate_size=max(len(inner), 1),
        vocab_size=max(len(vocab), 1),
    )
    cut = _Cut(arch, heads, inner, stored, links)
    tensors = stored.tensors
    head = tensors.get("head.weight", tensors["embed.weight"])[vocab.start : vocab.stop]
    return own, DecoderWeights(
        embed=_embedding(tensors["embed.weight"]),
        layers=tuple(cut.layer(f"layers.{index}.") for index in range(arch.num_layers)),
        final_norm=tensors["final_norm"].clone(),
        head=dense_linear(head, None, prepack=True),
        head_shares_embedding=False,
    )


class _Cut:
    """Takes a rank's rows and columns out of each layer's matrices."""

    def __init__(
        self, arch: ModelArch, heads: tuple[int, ...], inner: range, stored: StoredWeights,
        links: Links,
    ) -> None:  # fmt: skip
        self._tensors, self._links = stored.tensors, links
        dim, group = arch.head_dim, arch.group_size
        self._q = slice(heads[0] * group * dim, (heads[-1] + 1) * group * dim)
        self._q_heads = slice(heads[0] * group, (heads[-1] + 1) * group)
        self._kv = slice(heads[0], heads[-1] + 1)
        self._inner = slice(inner.start, inner.stop)
        self._sizes = [arch.q_size, arch.kv_size, arch.kv_size]
        self._counts = [arch.num_heads, arch.num_kv_heads]
        self._dim = dim

    def layer(self, prefix: str) -> Layer:
        """This rank's share of a layer."""
        get = self._tensors.get
        bias, norm = get(prefix + "qkv.bias"), get(prefix + "qk_norm")
        gate, up = self._tensors[prefix + "gate_up.weight"].chunk(2)
        return Layer(
            attn_norm=self._tensors[prefix + "attn_norm"].clone(),
            qkv=dense_linear(
                self._qkv(self._tensors[prefix + "qkv.weight"]),
                None if bias is None else self._qkv(bias),
                prepack=True,
            ),
            o=self._reduced(prefix + "o", self._q),
            mlp_norm=self._tensors[prefix + "mlp_norm"].clone(),
            gate_up=gated_linear(torch.cat([gate[self._inner], up[self._inner]])),
            down=self._reduced(prefix + "down", self._inner),
            qk_norm=None if norm is None else self._norms(norm),
        )

    def _qkv(self, rows: Tensor) -> Tensor:
        q, k, v = rows.split(self._sizes)
        kv = slice(self._kv.start * self._dim, self._kv.stop * self._dim)
        return torch.cat([q[self._q], k[kv], v[kv]])

    def _norms(self, rows: Tensor) -> Tensor:
        q, k = rows.split(self._counts)
        return torch.cat([q[self._q_heads], k[self._kv]])

    def _reduced(self, name: str, columns: slice) -> ReducedLinear:
        part = self._tensors[name + ".weight"][:, columns].contiguous()
        return ReducedLinear(
            dense_linear(part, None, prepack=True), self._tensors.get(name + ".bias"), self._links
        )


def _pipeline(
    arch: ModelArch, stored: StoredWeights, placement: Placement, rank: int
) -> tuple[ModelArch, DecoderWeights]:
    tensors, layers = stored.tensors, placement.layers[rank]
    hidden = arch.hidden_size
    nothing = tensors["final_norm"].new_empty(0, hidden)
    last = rank == placement.num_ranks - 1
    head = tensors.get("head.weight", tensors["embed.weight"])
    return replace(arch, num_layers=len(layers)), DecoderWeights(
        embed=_embedding(tensors["embed.weight"] if rank == 0 else nothing),
        layers=tuple(_whole_layer(tensors, f"layers.{index}.") for index in layers),
        final_norm=tensors["final_norm"].clone(),
        head=dense_linear(head, None, prepack=True) if last else DenseLinear(nothing),
        head_shares_embedding=False,
    )


def _whole_layer(tensors: dict[str, Tensor], prefix: str) -> Layer:
    def linear(name: str) -> Linear:
        bias = tensors.get(f"{prefix}{name}.bias")
        return dense_linear(tensors[f"{prefix}{name}.weight"], bias, prepack=True)

    norm = tensors.get(prefix + "qk_norm")
    return Layer(
        attn_norm=tensors[prefix + "attn_norm"].clone(),
        qkv=linear("qkv"),
        o=linear("o"),
        mlp_norm=tensors[prefix + "mlp_norm"].clone(),
        gate_up=gated_linear(tensors[prefix + "gate_up.weight"]),
        down=linear("down"),
        qk_norm=None if norm is None else norm.clone(),
    )


def _experts(
    source: ModelSource, stored: StoredWeights, placement: Placement, links: Links
) -> DecoderWeights:
    moe = source.moe
    if moe is None or sum(map(len, placement.experts)) != moe.num_experts:
        raise ValueError(
            f"experts = {placement.experts} is not allowed: the model has "
            f"{0 if moe is None else moe.num_experts} experts"
        )
    return moe_weights(moe.base, stored, _blocks(moe, source.seed, placement, links))


def _blocks(
    moe: MoeArch, seed: int, placement: Placement, links: Links
) -> Callable[[int], MoeBlock]:
    held = placement.experts[links.rank]

    def block(layer: int) -> MoeBlock:
        parts = (part.to(links.device) for part in expert_tensors(moe, layer, seed, held))
        router, gate_up, down = parts
        own = Experts(gate_up, down, held[0])
        return ExchangedBlock(router, own, moe.top_k, links, [len(p) for p in placement.experts])

    return block


def _embedding(table: Tensor) -> Embedding:
    return Embedding(table.clone(), None, table.dtype)  # a copy: else the whole file stays mapped
