"""Calibration of a model's K and V: what was measured, as one file, and as formats take it.

The file is safetensors. Its tensors, for L layers, H KV heads of D numbers:

    k.mean v.mean           [L, H, D]       of keys before RoPE, of values
    k.basis v.basis         [L, H, D, D]    principal directions as rows, the strongest first
    k.power v.power         [L, H, D]       mean square along each
    k.joint3 v.joint3 ..    [L, H/3, 3D, 3D] principal directions of 3 heads joined, and of other
    k.joint_power3 ..       [L, H/3, 3D]    numbers of heads that divide H (`joined_heads`)
    k.low k.high            [L, H, D]       range of each channel of keys before RoPE
    k.levels2 .. v.levels4  [L, H, 2**bits] of KVQuant, in [-1, 1], rising
    k.top k.top_plain v.top [L, H]          largest number, of keys after and before RoPE
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from kvkernels.api import FormatState
from kvkernels.formats import PageFormat
from kvkernels.formats.kvquant import NuqChannels, NuqTokens
from kvkernels.formats.low_rank import LowRank
from kvkernels.layout import PageSpec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from workbench.errors import SettingError
from workbench.model.decoder import Decoder
from workbench.model.fetch import cache_dir, writing

KIND = "kv-workbench calibration 2"
LEVEL_BITS = (2, 3, 4)
MAX_JOINED = 512  # numbers of joined heads; Palu joins 4 heads of 128


@dataclass(frozen=True)
class Calibration:
    """What was measured of one model (see the module), and its SHA-256 `fingerprint`.

    `scales`: whether formats that can do without it (fp8, NVFP4) take their scales from it too.
    `pre_rope`: whether pages hold keys before RoPE, whose largest numbers differ.
    """

    tensors: dict[str, Tensor]
    fingerprint: str
    num_tokens: int
    scales: bool = False
    pre_rope: bool = False
    path: Path | None = field(default=None, compare=False)

    def applies(self, fmt: PageFormat) -> bool:
        """Whether a format's bytes depend on it."""
        return fmt.shared == "table" or (self.scales and fmt.shared is not None)

    def state(
        self, spec: PageSpec, layers: Sequence[int], heads: Sequence[int], device: str
    ) -> FormatState:
        """The calibration of a page class for some layers and KV heads of the model."""
        state = FormatState.from_spec(spec, device)
        at = torch.tensor(layers)[:, None], torch.tensor(heads)[None]
        for plane, fmt in (("k", spec.k), ("v", spec.v)):
            if not self.applies(fmt):
                continue
            if fmt.shared == "table":
                values = {"table": self._table(plane, fmt, at)}
            else:
                name = "k.top_plain" if plane == "k" and self.pre_rope else f"{plane}.top"
                top = self.tensors[name] / fmt.largest
                values = {"scale": top[at[0][:, 0]].amax(1), "head_scale": top[at]}
            for part, value in values.items():
                setattr(state, f"{plane}_{part}", value.contiguous().to(device))
        return state

    def _table(self, plane: str, fmt: PageFormat, at: tuple[Tensor, Tensor]) -> Tensor:
        """A format's table, fp32 [layers, heads, W]."""
        known = {name: x[at] for name, x in self.tensors.items() if "joint" not in name}
        if isinstance(fmt, NuqChannels):
            low, high = known["k.low"], known["k.high"]
            half = ((high - low) / 2).clamp_min(1e-6)
            return torch.cat([(low + high) / 2, half, known[f"k.levels{fmt.bits}"]], -1)
        if isinstance(fmt, NuqTokens):
            return known[f"v.levels{fmt.bits}"]
        if isinstance(fmt, LowRank):
            mean = known[f"{plane}.mean"][..., None, :]
            rows = self._basis(plane, fmt.heads)[at][..., : fmt.rank_of(mean.shape[-1]), :]
            if fmt.bits < 16:
                rows = mixing(rows.shape[-2]) @ rows
            return torch.cat([mean, rows], -2).flatten(-2)
        raise ValueError(f"nothing is known of the table of format {fmt.name}")

    def power(self, plane: str, heads: int) -> Tensor:
        """Mean square along the directions of so many joined heads, [L, H / heads, heads * D]."""
        return self.tensors[f"{plane}.power" if heads == 1 else f"{plane}.joint_power{heads}"]

    def _basis(self, plane: str, heads: int) -> Tensor:
        """Each head's columns of the basis of so many joined heads, [L, H, heads * D, D]."""
        if heads == 1:
            return self.tensors[f"{plane}.basis"]
        rows = self.tensors[f"{plane}.joint{heads}"]  # [L, H / heads, heads * D, heads * D]
        return rows.unflatten(-1, (heads, -1)).movedim(-2, 2).flatten(1, 2)


def joined_heads(num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Numbers of heads, 2 or more, that can share a basis."""
    most = min(num_kv_heads, MAX_JOINED // head_dim)
    return tuple(count for count in range(2, most + 1) if num_kv_heads % count == 0)


def mixing(size: int) -> Tensor:
    """An orthogonal matrix of about equally large numbers (the discrete cosine transform)."""
    places = torch.arange(size, dtype=torch.float64)
    rows = torch.cos(math.pi * (places + 0.5) * places[:, None] / size) * (2 / size) ** 0.5
    rows[0] *= 0.5**0.5
    return rows.to(torch.float32)


def default_path(decoder: Decoder) -> Path:
    """Where the calibration of these weights lies in the cache folder."""
    return cache_dir() / "calibration" / f"{decoder.fingerprint[:32]}-{KIND[-1]}.safetensors"


def save(tensors: dict[str, Tensor], decoder: Decoder, num_tokens: int, path: Path) -> Calibration:
    """Write a calibration; ModelError where the folder does not take it."""
    held = {name: x.to("cpu", torch.float32).contiguous() for name, x in tensors.items()}
    meta = {"kind": KIND, "weights": decoder.fingerprint, "num_tokens": str(num_tokens)}
    with writing(path.parent, sum(x.nbytes for x in held.values())):
        part = path.with_suffix(".part")
        save_file(held, part, metadata=meta)
        part.replace(path)
    return Calibration(held, _fingerprint(held), num_tokens, path=path)


def load(path: Path, decoder: Decoder) -> Calibration:
    """Read a calibration of these weights; SettingError says in a sentence what is wrong with it.

    Foreign are files of other weights, of another weight format and of other shapes.
    """
    told = f"cache.calibration = {path}"
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except OSError as error:
        raise SettingError(
            f"{told} cannot be read ({error.strerror or 'no such file'}): name a file that "
            "`workbench calibrate state` wrote"
        ) from error
    except SafetensorError as error:
        raise SettingError(
            f"{told} is damaged or no safetensors file: write it again with "
            "`workbench calibrate state`"
        ) from error
    if meta.get("kind") != KIND:
        raise SettingError(f"{told} holds no calibration: name one of `workbench calibrate state`")
    if meta.get("weights") != decoder.fingerprint:
        raise SettingError(
            f"{told} was measured on other weights or another weight format: calibrate this model"
        )
    _check_tensors(tensors, decoder, told)
    return Calibration(tensors, _fingerprint(tensors), int(meta.get("num_tokens", 0)), path=path)


def shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor of a calibration of this model."""
    arch = decoder.arch
    lead, dim = (arch.num_layers, arch.num_kv_heads), arch.head_dim
    found: dict[str, tuple[int, ...]] = {"k.top_plain": lead, "k.low": (*lead, dim),
                                         "k.high": (*lead, dim)}  # fmt: skip
    for plane in ("k", "v"):
        found[f"{plane}.top"] = lead
        found |= {f"{plane}.{name}": (*lead, dim) for name in ("mean", "power")}
        found[f"{plane}.basis"] = (*lead, dim, dim)
        for count in joined_heads(arch.num_kv_heads, dim):
            joined = (lead[0], lead[1] // count, count * dim)
            found[f"{plane}.joint{count}"] = (*joined, count * dim)
            found[f"{plane}.joint_power{count}"] = joined
        found |= {f"{plane}.levels{bits}": (*lead, 2**bits) for bits in LEVEL_BITS}
    return found


def _check_tensors(tensors: dict[str, Tensor], decoder: Decoder, told: str) -> None:
    for name, shape in shapes(decoder).items():
        found = tensors.get(name)
        if found is None or tuple(found.shape) != shape or found.dtype != torch.float32:
            what = "none" if found is None else f"{list(found.shape)} {found.dtype}"
            raise SettingError(
                f"{told}: tensor {name} should be fp32 {list(shape)} and is {what}: calibrate again"
            )
        if not torch.isfinite(found).all():
            raise SettingError(f"{told}: tensor {name} has numbers that are not finite: "
                               "calibrate again")  # fmt: skip


def _fingerprint(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"|{name}:{list(tensors[name].shape)}:".encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
