"""Which KV heads, layers and experts lie on which rank.

tensor    every rank has all layers and its own KV heads       two all-reduces a layer
pipeline  every rank has its own layers and all heads          one send between two ranks
experts   every rank has all layers and heads, its own         three all-to-alls a layer
          experts, and sequences of its own
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.model.arch import ModelArch
from workbench.spatial.devices.moe_arch import MoeArch

Kind = Literal["tensor", "pipeline", "experts"]
Parts = tuple[tuple[int, ...], ...]
_SPREAD = {"tensor": "kv_heads", "pipeline": "layers", "experts": "experts"}


@dataclass(frozen=True)
class Placement:
    """What each rank holds, as runs of numbers; one of the three is spread, the others repeat.

    `experts` is empty for a decoder without any. Raises ValueError where a spread part is missing,
    held twice, out of order or where a rank holds none of it.
    """

    kind: Kind
    kv_heads: Parts
    layers: Parts
    experts: Parts = ()

    def __post_init__(self) -> None:
        if self.kind not in _SPREAD:
            raise ValueError(f"kind = {self.kind!r} is not allowed: choose one of {list(_SPREAD)}")
        for name in ("kv_heads", "layers", "experts"):
            parts = getattr(self, name)
            if name == "experts" and not parts and self.kind != "experts":
                continue
            if len(parts) != self.num_ranks:
                raise ValueError(
                    f"{name} has {len(parts)} parts: it must have {self.num_ranks}, one a rank"
                )
            _check_parts(name, parts, spread=_SPREAD[self.kind] == name)

    @property
    def num_ranks(self) -> int:
        """Ranks that share the work."""
        return len(self.kv_heads)

    @property
    def imbalance(self) -> float:
        """Most of the spread part that a rank holds, over the mean; 1 is even."""
        return max_over_mean([len(part) for part in getattr(self, _SPREAD[self.kind])])

    def check(self, arch: ModelArch) -> None:
        """ValueError where this is the placement of another architecture."""
        for name, total in (("kv_heads", arch.num_kv_heads), ("layers", arch.num_layers)):
            held = sorted({at for part in getattr(self, name) for at in part})
            if held != list(range(total)):
                raise ValueError(
                    f"{name} = {getattr(self, name)} is not allowed: 0 to {total - 1} must all lie "
                    f"on a rank, for model {arch.name!r} has {total}"
                )


def tensor_parallel(arch: ModelArch, num_ranks: int) -> Placement:
    """KV heads in runs as even as they go: 3 on 2 ranks are 2 + 1. ValueError past one a rank."""
    heads = _split("KV heads", arch.num_kv_heads, num_ranks)
    return Placement("tensor", heads, _all(arch.num_layers, num_ranks))


def pipeline(arch: ModelArch, num_ranks: int) -> Placement:
    """Layers in runs as even as they go; ValueError past one a rank."""
    layers = _split("layers", arch.num_layers, num_ranks)
    return Placement("pipeline", _all(arch.num_kv_heads, num_ranks), layers)


def experts(arch: MoeArch, num_ranks: int) -> Placement:
    """Experts in runs as even as they go; ValueError past one a rank."""
    parts = _split("experts", arch.num_experts, num_ranks)
    heads, layers = arch.base.num_kv_heads, arch.base.num_layers
    return Placement("experts", _all(heads, num_ranks), _all(layers, num_ranks), parts)


def shares(total: int, num_ranks: int) -> tuple[range, ...]:
    """`total` things in runs as even as they go, the longer runs first."""
    each, more = divmod(total, num_ranks)
    starts = [rank * each + min(rank, more) for rank in range(num_ranks + 1)]
    return tuple(range(a, b) for a, b in zip(starts, starts[1:], strict=False))


def max_over_mean(loads: Sequence[float]) -> float:
    """How far the fullest is above the mean; 1 is even, and so is nothing at all."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def _all(total: int, num_ranks: int) -> Parts:
    return (tuple(range(total)),) * num_ranks


def _split(what: str, total: int, num_ranks: int) -> Parts:
    if not 1 <= num_ranks <= total:
        raise ValueError(
            f"num_ranks = {num_ranks} is out of range: 1 to {total}, for there are {total} {what} "
            "and each rank needs one"
        )
    return tuple(tuple(share) for share in shares(total, num_ranks))


def _check_parts(name: str, parts: Parts, *, spread: bool) -> None:
    for rank, part in enumerate(parts):
        if not part or part != tuple(range(part[0], part[0] + len(part))) or part[0] < 0:
            raise ValueError(
                f"{name} of rank {rank} = {part} is not allowed: a run of numbers such as (2, 3)"
            )
    joined = [at for part in parts for at in part]
    if spread and joined != list(range(len(joined))):
        raise ValueError(
            f"{name} = {parts} is not allowed: the ranks' runs must follow one another from 0 on"
        )
    if not spread and len(set(parts)) > 1:
        raise ValueError(f"{name} = {parts} is not allowed: every rank must hold the same ones")
