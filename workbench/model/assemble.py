"""Build a `Decoder` from stored weights, and choose between formats for `auto`."""

import hashlib
import time
from collections.abc import Callable

import torch
from torch import Tensor

from workbench.model.arch import ModelArch
from workbench.model.decoder import Decoder, DecoderWeights, Layer
from workbench.model.store import StoredWeights
from workbench.model.weights import (
    AutoGatedLinear,
    AutoLinear,
    Embedding,
    FusedGatedLinear,
    GatedLinear,
    Int4Linear,
    Int8Linear,
    Linear,
    dense_linear,
    gated_linear,
)

PROBE_ROWS = (1, 2, 4, 8, 16)


def assemble(
    arch: ModelArch, stored: StoredWeights, *, weight_format: str, identity: str, device: str
) -> Decoder:
    """A decoder in one weight format; dense matrices are prepacked here."""
    weights = _build_weights(arch, stored, device)
    return Decoder(
        arch,
        weights,
        weight_format=weight_format,
        fingerprint=fingerprint_of(identity, weight_format),
        compute_dtype=weights.final_norm.dtype,
        device=device,
    )


def assemble_auto(
    arch: ModelArch,
    few: StoredWeights,
    many: StoredWeights,
    *,
    identity: str,
    device: str,
    threshold: int | None = None,
) -> tuple[Decoder, int]:
    """A decoder with two copies of its matrices, and the largest number of rows for `few`.

    Unless a `threshold` is given, a probe of well under a second times one layer of both for each
    number of rows; the result of a step then depends on its number of rows, so that the decoder is
    schedule dependent. The threshold shapes what is cached, so the fingerprint holds it.
    """
    fast, wide = _build_weights(arch, few, device), _build_weights(arch, many, device)
    if threshold is None:
        threshold = _probe(fast.layers[0], wide.layers[0])

    def both(pick: Callable[[Layer], Linear], a: Layer, b: Layer) -> Linear:
        return AutoLinear(pick(a), pick(b), threshold)

    layers = tuple(
        Layer(
            attn_norm=b.attn_norm,
            mlp_norm=b.mlp_norm,
            qk_norm=b.qk_norm,
            qkv=both(lambda layer: layer.qkv, a, b),
            o=both(lambda layer: layer.o, a, b),
            gate_up=AutoGatedLinear(a.gate_up, b.gate_up, threshold),
            down=both(lambda layer: layer.down, a, b),
        )
        for a, b in zip(fast.layers, wide.layers, strict=True)
    )
    weights = DecoderWeights(
        wide.embed,
        layers,
        wide.final_norm,
        AutoLinear(fast.head, wide.head, threshold),
        head_shares_embedding=False,
    )
    decoder = Decoder(
        arch,
        weights,
        weight_format="auto",
        fingerprint=fingerprint_of(identity, f"auto<={threshold}"),
        compute_dtype=wide.final_norm.dtype,
        device=device,
        schedule_dependent=True,
    )
    return decoder, threshold


def fingerprint_of(identity: str, weight_format: str) -> str:
    """SHA-256 hex of the weights' identity and their format."""
    return hashlib.sha256(f"{identity}:{weight_format}".encode()).hexdigest()


def _build_weights(arch: ModelArch, stored: StoredWeights, device: str) -> DecoderWeights:
    tensors = _resident(stored, device)
    dtype = tensors["final_norm"].dtype
    head_name = "head" if "head" in stored.kinds else "embed"
    head = _linear(stored, tensors, head_name)
    shares = head_name == "embed" and isinstance(head, Int8Linear) or device != "cpu"
    layers = tuple(_layer(stored, tensors, f"layers.{i}.") for i in range(arch.num_layers))
    return DecoderWeights(
        embed=Embedding(tensors["embed.weight"], tensors.get("embed.scale"), dtype),
        layers=layers,
        final_norm=tensors["final_norm"],
        head=head,
        head_shares_embedding=head_name == "embed" and shares,
    )


def _resident(stored: StoredWeights, device: str) -> dict[str, Tensor]:
    """The tensors on their device; what stays beside prepacked matrices is copied.

    A single mapped table would keep the whole file mapped, and count its matrices twice.
    """
    if device != "cpu":
        return {key: value.to(device) for key, value in stored.tensors.items()}
    if set(stored.kinds.values()) & {"int4", "int8"}:
        return stored.tensors
    prepacked = {f"{name}.weight" for name in stored.kinds if name != "embed"}
    return {
        key: value if key in prepacked else value.clone() for key, value in stored.tensors.items()
    }


def _layer(stored: StoredWeights, tensors: dict[str, Tensor], prefix: str) -> Layer:
    return Layer(
        attn_norm=tensors[prefix + "attn_norm"],
        qkv=_linear(stored, tensors, prefix + "qkv"),
        o=_linear(stored, tensors, prefix + "o"),
        mlp_norm=tensors[prefix + "mlp_norm"],
        gate_up=_gated(stored, tensors, prefix + "gate_up"),
        down=_linear(stored, tensors, prefix + "down"),
        qk_norm=tensors.get(prefix + "qk_norm"),
    )


def _linear(stored: StoredWeights, tensors: dict[str, Tensor], name: str) -> Linear:
    weight, bias = tensors[name + ".weight"], tensors.get(name + ".bias")
    kind = stored.kinds[name]
    if kind == "int4":
        return Int4Linear(weight, tensors[name + ".scale"], bias)
    if kind == "int8":
        return Int8Linear(weight, tensors[name + ".scale"], bias)
    return dense_linear(weight, bias, prepack=True)


def _gated(stored: StoredWeights, tensors: dict[str, Tensor], name: str) -> GatedLinear:
    if stored.kinds[name] in ("int4", "int8"):
        return FusedGatedLinear(_linear(stored, tensors, name))
    return gated_linear(tensors[name + ".weight"])


def _probe(few: Layer, many: Layer) -> int:
    """Largest number of rows, out of PROBE_ROWS, up to which `few` is the faster one."""
    threshold = 0
    for rows in PROBE_ROWS:
        if _probe_time(few, rows) > _probe_time(many, rows):
            break
        threshold = rows
    return threshold


@torch.inference_mode()
def _probe_time(layer: Layer, rows: int) -> float:
    """Best of five times in seconds of one layer's matrices at a number of rows."""
    linears = (layer.qkv, layer.o, layer.gate_up, layer.down)
    dtype = layer.attn_norm.dtype
    inputs = [torch.ones(rows, linear.in_features, dtype=dtype) for linear in linears]
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for linear, x in zip(linears, inputs, strict=True):
            linear(x)
        best = min(best, time.perf_counter() - start)
    return best
