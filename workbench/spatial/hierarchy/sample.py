"""Victims where a policy ranks them: of a bounded sample, which is all of a small tier."""

import random
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from workbench.spatial.hierarchy.pins import Hold

if TYPE_CHECKING:
    from workbench.spatial.hierarchy.entries import Entry, EntryTable

NUM_OLDEST, NUM_RANDOM = 8, 16  # of a sample; a tier of at most 24 entries is compared as a whole
TAKEN_SHARE = 4  # a quarter of a sample goes at most before the next one is drawn
Order = Callable[["list[Entry]"], "list[Entry]"]  # the one that leaves first in front

T = TypeVar("T")


class Bag(Generic[T]):
    """Things in no order, of which some can be drawn at random in constant time."""

    def __init__(self) -> None:
        self._things: list[T] = []
        self._at: dict[int, int] = {}  # by identity
        self._random = random.Random(0)  # the same load evicts the same

    def __len__(self) -> int:
        return len(self._things)

    def add(self, thing: T) -> None:
        """Put one thing in."""
        self._at[id(thing)] = len(self._things)
        self._things.append(thing)

    def remove(self, thing: T) -> None:
        """Take one thing out; the last one fills its place."""
        at, last = self._at.pop(id(thing)), self._things.pop()
        if last is not thing:
            self._things[at] = last
            self._at[id(last)] = at

    def draw(self, count: int) -> list[T]:
        """Some at random, perhaps one twice."""
        return self._random.choices(self._things, k=count)


def ranked(table: "EntryTable", num_bytes: int, order: Order) -> "list[Entry]":
    """Evictable entries of so many bytes, or all there are, those that `order` puts first.

    Each time up to 8 of the least recently used and 16 at random are compared (sampled eviction
    as in Redis), so that a choice costs the same in a tier of any size. What a soft pin holds is
    compared once nothing else is left.
    """
    chosen: dict[int, Entry] = {}
    rest = num_bytes
    for turn in (Hold.NONE, Hold.SOFT):
        while rest > 0:
            found = _candidates(table, chosen, turn)
            if not found:
                break
            for entry in order(found)[: max(1, len(found) // TAKEN_SHARE)]:
                chosen[id(entry)] = entry
                rest -= entry.charged_bytes
                if rest <= 0:
                    break
    return list(chosen.values())


def _candidates(table: "EntryTable", chosen: "dict[int, Entry]", turn: Hold) -> "list[Entry]":
    """A sample of what may leave in this turn and was not chosen; empty where nothing may."""

    def may_go(entry: "Entry") -> bool:
        return id(entry) not in chosen and table.hold(entry) is turn

    if len(table.bag) <= NUM_OLDEST + NUM_RANDOM:
        return list(filter(may_go, table.oldest()))
    nearest = islice(table.oldest(), 2 * NUM_OLDEST + len(chosen))
    some = list(islice(filter(may_go, nearest), NUM_OLDEST))
    some += filter(may_go, table.bag.draw(NUM_RANDOM))
    some = some or list(islice(filter(may_go, table.oldest()), NUM_OLDEST))
    return list({id(entry): entry for entry in some}.values())
