"""Runs text through a model and measures its keys and values: a calibration's tensors.

Every layer's K is taken before RoPE and V as it comes; attention itself is exact. Principal
directions are those of the second moments about the mean, which is Palu's whitened SVD of the
projection (what a whitened factor of W keeps of x W are the principal directions of x W). Levels
come from Lloyd's iteration on numbers in their range (KVQuant's k-means without Fisher weights).
"""

from collections.abc import Callable

import numpy as np
import torch
from kvkernels.common import rotate
from kvkernels.formats.kvquant import dense_range, even_levels
from torch import Tensor

from workbench.model.decoder import Decoder
from workbench.model.help_text import topic_tokens
from workbench.model.naive import causal_attend
from workbench.model.tokenizer import Tokenizer
from workbench.structural.compression.calibration import LEVEL_BITS, joined_heads

WINDOW = 512  # tokens that see one another
OUTSIDE = 0.005  # share of a channel's numbers beyond either end of its range
MAX_SAMPLES = 8192  # numbers of a layer and head that levels are fitted to
ROUNDS = 40
TEXT_SEED = 0  # the quality lab's order, which it reads from the other end

Progress = Callable[[float, str], None]


def measure(
    decoder: Decoder,
    token_ids: list[int],
    progress: Progress = lambda share, text: None,
) -> dict[str, Tensor]:
    """The tensors of a calibration (see `calibration`), from forced text in windows of 512."""
    windows = [token_ids[at : at + WINDOW] for at in range(0, len(token_ids), WINDOW)]
    windows = [window for window in windows if len(window) > 1]
    planes: dict[str, list[Tensor]] = {"k": [], "v": []}
    top = torch.zeros(decoder.arch.num_layers, decoder.arch.num_kv_heads)
    for number, window in enumerate(windows):
        k, v, rotated = _read(decoder, window)
        planes["k"].append(k)
        planes["v"].append(v)
        top = torch.maximum(top, rotated)
        progress((number + 1) / (len(windows) + 1), f"window {number + 1} of {len(windows)}")
    k, v = (torch.cat(planes[name], 1) for name in ("k", "v"))  # [L, T, H, D]
    tensors = {"k.top": top, "k.top_plain": k.abs().amax((1, 3)), "v.top": v.abs().amax((1, 3))}
    for name, x in (("k", k), ("v", v)):
        for part, value in zip(("mean", "basis", "power"), directions(x), strict=True):
            tensors[f"{name}.{part}"] = value
        for count in joined_heads(*x.shape[2:]):
            joined = x.unflatten(2, (-1, count)).flatten(3)  # [L, T, H / count, count * D]
            _, rows, power = directions(joined)
            tensors[f"{name}.joint{count}"], tensors[f"{name}.joint_power{count}"] = rows, power
    tensors["k.low"], tensors["k.high"] = _channel_ranges(k)
    for name, places in (("k", _places_k(k, tensors)), ("v", _places_v(v))):
        for bits in LEVEL_BITS:
            tensors[f"{name}.levels{bits}"] = _fit_levels(places, bits)
    progress(1.0, "measured")
    return tensors


def help_tokens(tokenizer: Tokenizer, count: int) -> list[int]:
    """Tokens of the built-in text, from the end that the quality lab reads last."""
    return topic_tokens(tokenizer, TEXT_SEED, count, from_end=True)[:count]


def _read(decoder: Decoder, token_ids: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """K before RoPE and V, fp32 [L, T, H, D], and the largest number of rotated K, [L, H]."""
    count, arch = len(token_ids), decoder.arch
    cos, sin = (table[:, None] for table in decoder.rope_tables(count))
    shape = (arch.num_layers, count, arch.num_kv_heads, arch.head_dim)
    k_all, v_all = torch.empty(shape), torch.empty(shape)
    top = torch.empty(arch.num_layers, arch.num_kv_heads)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_all[layer], v_all[layer] = k.float().cpu(), v.float().cpu()
        q, turned = (rotate(x.float(), cos, sin) for x in (q, k))
        top[layer] = turned.abs().amax((0, 2)).cpu()
        return causal_attend(layer, q.to(v.dtype), turned.to(v.dtype), v)

    tokens = torch.tensor(token_ids, dtype=torch.int64, device=decoder.device)
    none = torch.tensor([count - 1], device=decoder.device)
    decoder.forward(
        tokens, torch.arange(count, device=decoder.device), attend, none, rope="at_read"
    )
    return k_all, v_all, top


def directions(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [L, H, D], principal directions as rows [L, H, D, D], and their mean squares."""
    wide = x.double().transpose(1, 2)  # [L, H, T, D]
    mean = wide.mean(2)
    shifted = wide - mean[:, :, None]
    power, vectors = torch.linalg.eigh(shifted.mT @ shifted / x.shape[1])  # rising
    rows = vectors.flip(-1).mT
    # a direction and its opposite are one: the largest number is positive, so that files agree
    sign = rows.gather(-1, rows.abs().argmax(-1, keepdim=True)).sign()
    return mean.float(), (rows * sign).float(), power.flip(-1).clamp_min(0).float()


def _channel_ranges(k: Tensor) -> tuple[Tensor, Tensor]:
    """Range of each channel without the numbers furthest outside, [L, H, D] each."""
    count = k.shape[1]
    ordered = k.sort(1).values
    skip = int(OUTSIDE * count)
    return ordered[:, skip].contiguous(), ordered[:, count - 1 - skip].contiguous()


def _places_k(k: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Keys within their channels' ranges, the number furthest outside left out: [L, H, n]."""
    low, high = (tensors[name][:, None] for name in ("k.low", "k.high"))  # [L, 1, H, D]
    places = (k - (low + high) / 2) / ((high - low) / 2).clamp_min(1e-6)
    outlier = places.abs().argmax(-1, keepdim=True)
    return _sample(places.scatter(-1, outlier, torch.nan))


def _places_v(v: Tensor) -> Tensor:
    """Values within their tokens' ranges, alike."""
    places, _, _, outlier = dense_range(v)
    return _sample(places.scatter(-1, outlier, torch.nan))


def _sample(places: Tensor) -> Tensor:
    """At most MAX_SAMPLES numbers of each layer and head, spread evenly, rising; [L, H, n]."""
    flat = places.transpose(1, 2).flatten(2)  # [L, H, T * D]
    kept = flat[~flat.isnan()].view(*flat.shape[:2], -1)  # every vector left out one number
    step = max(1, kept.shape[-1] // MAX_SAMPLES)
    return kept.sort(-1).values[..., step // 2 :: step].clamp(-1.0, 1.0)


def _fit_levels(places: Tensor, bits: int) -> Tensor:
    """Levels with the least squared error for sorted numbers [L, H, n]: [L, H, 2**bits]."""
    lead = places.shape[:2]
    rows = [_lloyd(row, bits) for row in places.flatten(0, 1).double().numpy()]
    return torch.from_numpy(np.stack(rows)).float().unflatten(0, lead)


def _lloyd(ordered: np.ndarray, bits: int) -> np.ndarray:
    """Lloyd's iteration on rising numbers [n], from evenly many a level; rising [2**bits]."""
    count = 2**bits
    if not len(ordered) or ordered[0] == ordered[-1]:
        even: np.ndarray = even_levels(bits).numpy().astype(np.float64)
        return even
    levels = np.quantile(ordered, (np.arange(count) + 0.5) / count)
    levels = levels + np.arange(count) * 1e-9  # equal quantiles stay apart
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    for _ in range(ROUNDS):
        cuts = np.searchsorted(ordered, (levels[1:] + levels[:-1]) / 2, side="right")
        ends = np.concatenate([[0], cuts, [len(ordered)]])
        members = np.diff(ends)
        means = np.diff(sums[ends]) / np.maximum(members, 1)
        levels = np.sort(np.where(members > 0, means, levels))
    return levels
