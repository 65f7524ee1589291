"""How a row is cut on its way to a tier: into equal slices, each of the same number of layers.

    row    | layer 0 | layer 1 | layer 2 | layer 3 | ... | layer 29 |
    slices |      slice 0      |      slice 1      | ... | slice 14 |

A slice is the unit of checksums (architecture, decision 6) and of loads by layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvkernels.layout import PageSpec

from workbench.cache.geometry import Geometry

LEAST_SLICE_BYTES = 32 * 1024  # below it a transfer's latency weighs more than its bytes
Part = tuple[int, PageSpec]  # byte offset of a page in the arena, and what it is


@dataclass(frozen=True)
class RowSlices:
    """`layers` of a model of `num_layers` to a slice; the groups of a row are in layer order."""

    geometry: Geometry
    layers: int

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return self.geometry.num_layers

    def count(self, parts: Sequence[Part]) -> int:
        """Slices of a row of these pages; 1 where layers differ in size, or a group has no page."""
        alike = len({spec.layer_bytes for _, spec in parts}) == 1
        whole = len(parts) == len(self.geometry.groups)
        return self.num_layers // self.layers if alike and whole else 1

    def places(self, parts: Sequence[Part], number: int) -> Iterator[tuple[int, int]]:
        """(byte offset in the arena, bytes) of each piece of a slice, in the order of the row."""
        first, end = number * self.layers, (number + 1) * self.layers
        for group, (offset, spec) in zip(self.geometry.groups, parts, strict=True):
            mine = [at for at, layer in enumerate(group.layers) if first <= layer < end]
            if mine:
                yield offset + mine[0] * spec.layer_bytes, len(mine) * spec.layer_bytes


def row_slices(geometry: Geometry, specs: Sequence[PageSpec]) -> RowSlices:
    """The smallest slices of at least `LEAST_SLICE_BYTES` that divide the layers evenly.

    Smaller ones where there would be one alone. `specs`: of each group's full pages.
    """
    row_bytes = sum(spec.page_bytes for spec in specs)
    total = geometry.num_layers
    divisors = [layers for layers in range(1, total) if total % layers == 0] or [1]
    fitting = (layers for layers in divisors if row_bytes * layers >= LEAST_SLICE_BYTES * total)
    return RowSlices(geometry, next(fitting, divisors[-1]))
