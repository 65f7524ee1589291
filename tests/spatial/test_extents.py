"""The allocator against a naive model: a set of free block numbers."""

import random
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workbench.spatial.hierarchy.extents import Extents, Run

BLOCKS = 48


def runs_of(blocks: set[int]) -> list[Run]:
    """Maximal runs of a set of numbers."""
    runs: list[Run] = []
    for block in sorted(blocks):
        if runs and sum(runs[-1]) == block:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((block, 1))
    return runs


def blocks_of(runs: list[Run]) -> list[int]:
    return [block for start, count in runs for block in range(start, start + count)]


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.extents = Extents()
        self.extents.add(0, BLOCKS)
        self.free = set(range(BLOCKS))
        self.held: list[list[Run]] = []

    @rule(count=st.integers(1, 20), max_runs=st.integers(1, 6))
    def take(self, count: int, max_runs: int) -> None:
        before = runs_of(self.free)
        taken = self.extents.take(count, max_runs)
        longest = sorted((length for _, length in before), reverse=True)
        if sum(longest[:max_runs]) < count:
            assert taken is None
            return
        assert taken is not None and len(taken) <= max_runs
        blocks = blocks_of(taken)
        assert len(blocks) == len(set(blocks)) == count and set(blocks) <= self.free
        fitting = [run for run in before if run[1] >= count]
        if fitting:  # one run, from the start of the shortest, the first of equals
            assert taken == [(min(fitting, key=lambda run: (run[1], run[0]))[0], count)]
        self.free -= set(blocks)
        self.held.append(taken)

    @rule(count=st.integers(1, 20), wish=st.integers(0, BLOCKS))
    def take_near(self, count: int, wish: int) -> None:
        starts = [block for block in self.free if set(range(block, block + count)) <= self.free]
        behind = [block for block in starts if block >= wish]
        taken = self.extents.take_near(count, wish)
        assert taken == min(behind or starts, default=None)
        if taken is not None:
            self.free -= set(range(taken, taken + count))
            self.held.append([(taken, count)])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        runs = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        for start, count in data.draw(st.permutations(runs)):
            self.extents.add(start, count)
        self.free |= set(blocks_of(runs))

    @rule(count=st.integers(1, 12), highest=st.booleans())
    def edge(self, count: int, highest: bool) -> None:
        runs = runs_of(self.free)
        taken = self.extents.take_edge(count, highest)
        if not runs:
            assert taken is None
            return
        start, length = runs[-1 if highest else 0]
        cut = min(count, length)
        assert taken == ((start + length - cut, cut) if highest else (start, cut))
        self.free -= set(blocks_of([taken]))
        self.held.append([taken])

    @invariant()
    def same_as_the_model(self) -> None:
        self.extents.check()
        assert self.extents.runs() == runs_of(self.free)
        assert self.extents.free_blocks == len(self.free)
        assert self.extents.largest == max((n for _, n in runs_of(self.free)), default=0)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("reserve, most, mean", [(0, 120, 8.0), (10_000 // 64, 16, 2.5)])
def test_free_bytes_are_never_lost_to_fragmentation(reserve: int, most: int, mean: float) -> None:
    """Formats change while running: pages of many sizes, one in three evicted out of order."""
    rng = random.Random(7)
    extents = Extents()
    extents.add(0, 10_000)
    held: list[list[Run]] = []
    num_runs = []
    for turn in range(10_000):
        count = rng.choice((2, 3, 11, 46, 91, 180))
        while extents.free_blocks < count + reserve:
            for run in held.pop(0 if turn % 3 else rng.randrange(len(held))):
                extents.add(*run)
        taken = extents.take(count, 400)
        assert taken is not None, "what fits by bytes can be placed"
        num_runs.append(len(taken))
        held.append(taken)
    extents.check()
    assert max(num_runs) <= most and sum(num_runs) / len(num_runs) <= mean


def lines_run(extents: Extents) -> int:
    """Lines of Python that taking a block and giving it back run through."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        taken = extents.take(1)
        assert taken is not None
        extents.add(*taken[0])
    finally:
        sys.settrace(before)
    return count


def test_many_runs_take_no_more_lines_than_few() -> None:
    """Work of Python that grew with the runs would stop the engine on a fragmented disk."""
    few, many = Extents(), Extents()
    for extents, num_blocks in ((few, 20), (many, 100_000)):
        for block in range(0, num_blocks, 2):
            extents.add(block, 1)
    assert 10 < lines_run(many) == lines_run(few)


@pytest.mark.parametrize("start, count", [(2, 1), (2, 0), (0, 2), (3, 2)])
def test_blocks_that_are_free_already(start: int, count: int) -> None:
    extents = Extents()
    extents.add(2, 3)
    with pytest.raises(ValueError, match="free already|at least one block"):
        extents.add(start, count) if start != 0 else (extents.add(0, 2), extents.add(0, 2))


def test_nothing_to_take() -> None:
    extents = Extents()
    assert extents.take(1) is None and extents.take_edge(1, True) is None
    with pytest.raises(ValueError, match="count 0"):
        extents.take(0)
