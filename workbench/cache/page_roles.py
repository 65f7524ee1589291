"""Which class a page is in by its place in a request: first, full, waiting, or being filled.

exact      | full       | open, outlier  | full       | open, waiting | open, being filled |
sink_pages   sealed       outlier_pages    sealed       residual_pages
"""

from collections import Counter
from dataclasses import dataclass, field

from workbench.cache.filling import Filling, GroupClasses
from workbench.cache.request_blocks import RequestBlocks


@dataclass
class PageRoles:
    """Page classes of each group; `open` and `exact` are those of full pages unless given.

    full: of full pages. open: of pages that are being filled. exact: of the first pages of a text.
    joined: classes of pages whose V lies below, as they are read.
    """

    block_size: int  # tokens of a page
    full: list[int]
    open: list[int] = field(default_factory=list)
    exact: list[int] = field(default_factory=list)
    joined: dict[int, int] = field(default_factory=dict)
    max_open_pages: int = 2  # of each group of one request, at any moment
    residual_pages: int = 0  # newest full pages that are not sealed yet
    outlier_pages: int = 0  # full pages whose keys are least alike, which are not sealed
    own_basis: bool = (
        False  # full pages wait for a basis of the request's keys, and are sealed then
    )
    sink_pages: int = 0  # first pages of a text that stay as exact as they were computed

    def __post_init__(self) -> None:
        """One class for all where no other is given."""
        self.open = self.open or self.full
        self.exact = self.exact or self.full

    @property
    def seals(self) -> bool:
        """Whether a full page changes its class (formats grouped along tokens, a residual)."""
        return self.open != self.full

    @property
    def mixes(self) -> bool:
        """Whether a request's pages can be of several classes."""
        return self.seals or (self.sink_pages > 0 and self.exact != self.full)

    def of_groups(self) -> list[GroupClasses]:
        """The classes by group, as pages are taken: those that wait for a basis take what comes."""
        full = self.open if self.own_basis else self.full
        each = zip(full, self.open, self.exact, strict=True)
        return [GroupClasses(*classes, self.sink_pages) for classes in each]

    def needs(self, first: int, count: int, filled: Filling, reserve_pages: int) -> Counter[int]:
        """Blocks of each class that all groups need for `count` pages from the first-th on.

        `reserve_pages`: full pages of each group besides.
        """
        found: Counter[int] = Counter()
        for each in self.of_groups():
            found.update(each.needs(first, count, filled))
            found[each.full] += reserve_pages
        return found

    def final_row(self, page: int) -> list[int]:
        """The class of each group's full page that is the page-th of its text."""
        return self.exact if page < self.sink_pages else self.full

    def num_sinks(self, blocks: RequestBlocks, group: int) -> int:
        """Leading pages of a table that are among the first of the text."""
        return blocks.num_first_pages(group, self.sink_pages) if self.sink_pages else 0

    def num_final_pages(self, num_slots: int) -> int:
        """Leading pages that have their final bytes once `num_slots` slots are stored."""
        waiting = self.residual_pages if self.seals else 0
        return max(0, num_slots // self.block_size - waiting)
