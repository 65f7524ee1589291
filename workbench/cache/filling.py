"""Fresh pages that new tokens need, where full pages and open ones may differ in class.

Formats that group the tokens of a page are written whole: tokens go into an open page of the
compute dtype, and a page that fills up is *sealed*, that is encoded into its final class. With a
residual, the newest full pages wait in full precision until as many others are full behind them.
The first pages of a text can be of a class of their own, which they keep (exact sinks); and those
whose keys are least alike stay as they are, wherever they lie (outliers).

    table | sink | sealed | outlier | sealed | full, waiting | open (5 of 16 slots) |  spare
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Filling:
    """Fresh pages of one group: loaded whole, opened for new tokens, and sealed after the step."""

    num_loaded: int
    num_open: int
    num_sealed: int

    @staticmethod
    def of(
        num_loaded_tokens: int,
        num_stored: int,
        num_new_tokens: int,
        size: int,
        *,
        residual: int = 0,
        num_waiting: int = 0,
        num_exact: int = 0,
        num_outliers: int = 0,
    ) -> "Filling":
        """`num_new_tokens` behind `num_stored` slots; the first of them arrive as full pages.

        `residual`: full pages that stay open; `num_waiting`: how many do before. `num_exact`: first
        pages that are never sealed; `num_outliers`: others that are not, wherever they lie.
        """
        first = num_stored // size
        loaded = num_loaded_tokens // size
        end = num_stored + num_new_tokens
        settled = max(first + loaded - num_waiting, num_exact)
        due = max(0, end // size - residual - settled - num_outliers)
        return Filling(loaded, -(-end // size) - first - loaded, due)

    def minus(self, num_open: int, num_spares: int) -> "Filling":
        """What is still missing."""
        return Filling(
            self.num_loaded,
            max(0, self.num_open - num_open),
            max(0, self.num_sealed - num_spares),
        )


def num_sinks_among(first: int, count: int, num_sinks: int) -> int:
    """How many of `count` pages from the first-th of a text on are among its `num_sinks` first."""
    return max(0, min(count, num_sinks - first))


@dataclass(frozen=True)
class FreshPages:
    """(class, count) of the pages that a group takes: for its table in order, and the spares."""

    table: tuple[tuple[int, int], ...]
    spares: tuple[int, int]

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """All of them."""
        return (*self.table, self.spares)


@dataclass(frozen=True)
class GroupClasses:
    """Page classes of one group: of full pages, open ones, the first `num_sinks` of a text."""

    full: int
    open: int
    exact: int
    num_sinks: int

    def fresh(self, first: int, filled: Filling) -> FreshPages:
        """Fresh pages by class, from the first-th page of the text on."""
        loaded, begun = filled.num_loaded, filled.num_open
        kept = num_sinks_among(first, loaded, self.num_sinks)
        opened = num_sinks_among(first + loaded, begun, self.num_sinks)
        spares = filled.num_sealed if self.full != self.open else 0
        return FreshPages(
            ((self.exact, kept), (self.full, loaded - kept))
            + ((self.exact, opened), (self.open, begun - opened)),
            (self.full, spares),
        )

    def needs(self, first: int, count: int, filled: Filling) -> Counter[int]:
        """Blocks of each class for `count` full pages from there on, and those that are open."""
        sinks = num_sinks_among(first, count, self.num_sinks)
        found = Counter({self.full: count - sinks})
        found[self.exact] += sinks
        if self.full != self.open:
            begun, behind = filled.num_open, first + filled.num_loaded
            found[self.open] += begun - num_sinks_among(behind, begun, self.num_sinks)
        return found


def count_pages(fresh: Sequence[FreshPages]) -> Counter[int]:
    """Blocks of each class among the fresh pages of all groups."""
    found: Counter[int] = Counter()
    for pages in fresh:
        for cls, count in pages.pairs:
            found[cls] += count
    return found
