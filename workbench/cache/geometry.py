"""Which layers and KV heads share a page: groups, and the layer sets one kernel call covers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvkernels.layout import PageSpec

from workbench.errors import SettingError
from workbench.settings.cache import GROUPINGS


@dataclass(frozen=True)
class Group:
    """Layers x KV heads whose K and V lie in the same pages."""

    index: int
    layers: tuple[int, ...]
    kv_heads: tuple[int, ...]

    def page_spec(
        self,
        head_dim: int,
        block_size: int,
        k_format: str,
        v_format: str,
        share: int = 0,
        rank: int = 0,
        rank_heads: int = 1,
    ) -> PageSpec:
        """The page class of this group under a format; the rest as in `PageSpec`."""
        return PageSpec(
            len(self.layers), len(self.kv_heads), head_dim, block_size, k_format, v_format,
            share, rank, rank_heads=rank_heads,
        )  # fmt: skip


@dataclass(frozen=True)
class LayerSet:
    """Layers whose attention uses the same tables; `groups` cover their KV heads in head order."""

    index: int
    layers: tuple[int, ...]
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """All groups of a model, and its layers gathered into layer sets."""

    groups: tuple[Group, ...]
    layer_sets: tuple[LayerSet, ...]
    num_layers: int
    num_kv_heads: int
    head_dim: int

    def layer_set_of(self, layer: int) -> tuple[LayerSet, int]:
        """The layer set of a model layer, and the layer's index inside its groups' pages."""
        return self._places[layer]

    @cached_property
    def _places(self) -> dict[int, tuple[LayerSet, int]]:
        return {
            layer: (layer_set, local)
            for layer_set in self.layer_sets
            for local, layer in enumerate(layer_set.layers)
        }


def build_geometry(grouping: str, *, num_layers: int, num_kv_heads: int, head_dim: int) -> Geometry:
    """Groups of a model under a grouping, and the layer sets that share tables.

    `model`: one group. `halves`: the first and the second half of the layers. `layer`: one group a
    layer. `head`: one a layer and KV head, so that each head can keep tokens of its own.
    """
    if grouping not in GROUPINGS:
        raise SettingError(
            f"cache.grouping = {grouping!r} is unknown: choose one of {', '.join(GROUPINGS)}"
        )
    all_heads = tuple(range(num_kv_heads))
    heads = [(head,) for head in all_heads] if grouping == "head" else [all_heads]
    groups: list[Group] = []
    layer_sets: list[LayerSet] = []
    for index, layers in enumerate(_layer_parts(grouping, num_layers)):
        first = len(groups)
        groups += [Group(first + at, layers, part) for at, part in enumerate(heads)]
        layer_sets.append(LayerSet(index, layers, tuple(range(first, len(groups)))))
    return Geometry(tuple(groups), tuple(layer_sets), num_layers, num_kv_heads, head_dim)


def _layer_parts(grouping: str, num_layers: int) -> list[tuple[int, ...]]:
    layers = tuple(range(num_layers))
    if grouping == "model":
        return [layers]
    if grouping == "halves":
        middle = max(1, num_layers // 2)
        return [part for part in (layers[:middle], layers[middle:]) if part]
    return [(layer,) for layer in layers]


def fitting_pages(
    specs: Sequence[PageSpec],
    slab_bytes: int,
    num_slabs: int,
    besides: Counter[PageSpec] | None = None,
) -> int:
    """Pages that each group can have in an arena; a slab holds pages of one class only.

    `specs`: the page class of each group. `besides`: pages of each class that are needed anyway.
    """
    count, also = Counter(specs), besides or Counter()
    per_slab = {spec: slab_bytes // spec.page_bytes for spec in count | also}
    if not all(per_slab.values()):
        return 0
    low, high = 0, num_slabs * max(per_slab.values())
    while low < high:
        pages = (low + high + 1) // 2
        needs = {spec: pages * count[spec] + also[spec] for spec in per_slab}
        slabs = sum(-(-need // per_slab[spec]) for spec, need in needs.items())
        low, high = (pages, high) if slabs <= num_slabs else (low, pages - 1)
    return low


def choose_slab(budget_bytes: int, page_bytes: int, num_classes: int = 1) -> tuple[int, int]:
    """(slab_bytes, num_slabs) that fit the most pages of the base class into the budget.

    Slabs of 8 to 32 base pages: small enough to move between classes, large enough that other
    formats waste little of one. Of fewer only where each of `num_classes` would not have one.
    """
    if budget_bytes < page_bytes:
        return 0, 0
    best = (0, 0, 0)  # pages, num_slabs, pages per slab
    fewest = max(1, min(8, budget_bytes // (num_classes * page_bytes)))
    for per_slab in range(fewest, 33 if fewest == 8 else fewest + 1):
        num_slabs = budget_bytes // (per_slab * page_bytes)
        if num_slabs >= min(num_classes, budget_bytes // (fewest * page_bytes)):
            best = max(best, (num_slabs * per_slab, num_slabs, per_slab))
    num_slabs = best[1] or 1
    share, least = budget_bytes // num_slabs, best[2] * page_bytes
    aligned = share // 4096 * 4096  # so that a disk can read past the page cache into a page
    return aligned if aligned >= least else share // 64 * 64, num_slabs
