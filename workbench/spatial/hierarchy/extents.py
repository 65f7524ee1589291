"""Free runs of a file's blocks: best fit, merged with their neighbours when they come back.

    blocks   0   1   2   3   4   5   6   7   8   9
             |used |  free 2..4  |used |  free 7..9  |

A page that fits no single run is laid over several, largest first, so that free bytes are never
lost to fragmentation: whatever fits by bytes can be placed.
"""

from bisect import bisect_left, bisect_right, insort

Run = tuple[int, int]  # first block, number of blocks


class Extents:
    """A set of free blocks; all counts are in blocks, no two of its runs touch."""

    def __init__(self) -> None:
        self.free_blocks = 0
        self._by_size: list[Run] = []  # (number of blocks, first block), sorted
        self._starts: dict[int, int] = {}  # first block -> number of blocks
        self._ends: dict[int, int] = {}  # block behind a run -> its first block
        self._places: list[int] = []  # first blocks, sorted

    def runs(self) -> list[Run]:
        """Free runs in order of their place."""
        return sorted(self._starts.items())

    @property
    def largest(self) -> int:
        """Length of the longest run."""
        return self._by_size[-1][0] if self._by_size else 0

    def add(self, start: int, count: int) -> None:
        """Make blocks free; they must not be (ValueError where a neighbouring run shows it)."""
        if count <= 0:
            raise ValueError(f"count {count}: a run has at least one block")
        before = self._ends.get(start)
        if start in self._starts or (start + count) in self._ends:
            raise ValueError(f"blocks {start}..{start + count - 1} are free already")
        behind = self._starts.get(start + count)
        self.free_blocks += count
        if before is not None:
            self._drop(before, start - before)
            start, count = before, count + start - before
        if behind is not None:
            self._drop(start + count, behind)
            count += behind
        self._keep(start, count)

    def take(self, count: int, max_runs: int = 1) -> list[Run] | None:
        """Best fit for `count` blocks, in at most `max_runs` runs; None if it cannot be had.

        One run where one is long enough (the shortest such, the first of equals); else the longest
        ones, and a best fit for the rest. Nothing changes where None is returned.
        """
        if count <= 0:
            raise ValueError(f"count {count}: a page has at least one block")
        chosen = self._choose(count, max_runs)
        if chosen is None:
            return None
        for start, length in chosen:
            self._cut(start, self._starts[start], length)
        self.free_blocks -= count
        return chosen

    def take_near(self, count: int, wish: int) -> int | None:
        """The first block of `count` free ones from block `wish` on, or from the file's begin.

        First fit; None, and nothing taken, where no run is long enough.
        """
        if count <= 0 or count > self.largest:
            return None
        at = bisect_right(self._places, wish)
        if at and self._places[at - 1] + self._starts[self._places[at - 1]] >= wish + count:
            return self._take_inside(self._places[at - 1], wish, count)
        for start in (*self._places[at:], *self._places[:at]):
            if self._starts[start] >= count:
                return self._take_inside(start, start, count)
        return None

    def _take_inside(self, start: int, first: int, count: int) -> int:
        """Take blocks from `first` on out of the run that begins at `start`."""
        length = self._starts[start]
        self._drop(start, length)
        if first > start:
            self._keep(start, first - start)
        if start + length > first + count:
            self._keep(first + count, start + length - first - count)
        self.free_blocks -= count
        return first

    def take_edge(self, count: int, highest: bool) -> Run | None:
        """Up to `count` blocks of the free run that lies highest (from its top) or lowest."""
        if not self._starts:
            return None
        start = self._places[-1 if highest else 0]
        length = self._starts[start]
        taken = min(count, length)
        self._drop(start, length)
        if length > taken:
            self._keep(start if highest else start + taken, length - taken)
        self.free_blocks -= taken
        return (start + length - taken, taken) if highest else (start, taken)

    def check(self) -> None:
        """Raise ValueError if the four indexes disagree, or two runs touch."""
        runs = self.runs()
        sized = sorted((length, start) for start, length in runs)
        ends = {start + length: start for start, length in runs}
        places = [start for start, _ in runs]
        if sized != self._by_size or ends != self._ends or places != self._places:
            raise ValueError("the indexes of free runs disagree")
        if sum(length for _, length in runs) != self.free_blocks:
            raise ValueError(f"free runs do not add up to {self.free_blocks} blocks")
        if any(a + n >= b for (a, n), (b, _) in zip(runs, runs[1:], strict=False)):
            raise ValueError("two free runs touch or overlap")

    def _choose(self, count: int, max_runs: int) -> list[Run] | None:
        if count > self.free_blocks:
            return None
        chosen: list[Run] = []
        longest = len(self._by_size) - 1
        while count:
            if len(chosen) == max_runs:
                return None
            at = bisect_left(self._by_size, (count, 0), 0, longest + 1)
            if at <= longest:
                chosen.append((self._by_size[at][1], count))
                return chosen
            length, start = self._by_size[longest]
            chosen.append((start, length))
            count -= length
            longest -= 1
        return chosen

    def _cut(self, start: int, length: int, count: int) -> None:
        self._drop(start, length)
        if length > count:
            self._keep(start + count, length - count)

    def _keep(self, start: int, count: int) -> None:
        self._starts[start] = count
        self._ends[start + count] = start
        insort(self._by_size, (count, start))
        insort(self._places, start)

    def _drop(self, start: int, count: int) -> None:
        del self._starts[start]
        del self._ends[start + count]
        del self._by_size[bisect_left(self._by_size, (count, start))]
        del self._places[bisect_left(self._places, start)]
