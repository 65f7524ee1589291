"""Part of `workbench bench tiers`: thousands of transfers while media are damaged and killed.

Every page's bytes follow from its key, so that a wrong byte cannot hide. A *lost* request is one
whose load never ends; an *uncounted* miss is a page that a tier said it had, did not give, and did
not count. After each fault the throughput has to come back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from workbench.cache.tier import Lookup
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.lab import fault_engine
from workbench.lab.fault_engine import Served, ServePlan, serve_under_faults
from workbench.lab.fault_kinds import ANY, GONE, Fault, Ladder, ladders
from workbench.lab.figures import Figure
from workbench.spatial.hierarchy.hierarchy import Hierarchy

Progress = Callable[[str], None]
MOST_WAIT_S = 60.0
NUM_SLICES = 6
DRIFT = 4  # transfers after which a new page is asked for; the older, the less often
BACK = 0.9  # of the throughput before the fault


@dataclass(frozen=True)
class FaultPlan:
    """How many transfers in all, of how many pages of which size; `window` for the throughput."""

    num_transfers: int = 10_000
    page_bytes: int = 49_152
    num_keys: int = 600
    window: int = 60
    served: ServePlan = ServePlan()


QUICK = FaultPlan(
    num_transfers=700, page_bytes=6_144, num_keys=400, window=40, served=fault_engine.QUICK
)


@dataclass
class Tally:
    """What was seen from outside."""

    transfers: int = 0
    wrong_bytes: int = 0
    lost_requests: int = 0
    broken_promises: int = 0  # pages that were a hit and did not come
    uncounted: int = 0  # of these, more than were counted while their load was under way
    recoveries: dict[str, float] = field(default_factory=dict)
    unmet: list[str] = field(default_factory=list)  # faults whose word no tier has counted
    missing: list[str] = field(default_factory=list)  # those that cannot be here, and why


def measure_faults(progress: Progress, folder: Path, plan: FaultPlan) -> list[Figure]:
    """Run the ladders one after the other, each through all of its faults."""
    tally, counted, faults = Tally(), 0, []
    chosen = ladders(folder, plan.page_bytes)
    for ladder in chosen:
        with ladder.running() as settings:
            run = _Run(settings, ladder, plan, tally)
            try:
                share = plan.num_transfers // len(chosen)
                faults += run.through(ladder.faults, share, progress)
                counted += run.num_counted()
            finally:
                run.hierarchy.close()
    of_engine = folder / "engine"
    of_engine.mkdir(0o700)
    return _figures(tally, counted, faults, serve_under_faults(progress, of_engine, plan.served))


class _Run:
    """One ladder under load; one thread, as an engine's."""

    def __init__(
        self, settings: TierSettings, ladder: Ladder, plan: FaultPlan, tally: Tally
    ) -> None:
        self.clock = RealClock()
        self.plan, self.tally, self.ladder = plan, tally, ladder
        self.rng = np.random.default_rng(0)
        self.hierarchy = Hierarchy(settings, plan.page_bytes, self.clock, lambda kind, data: None)

    def through(self, faults: list[Fault], num_transfers: int, progress: Progress) -> list[str]:
        """A calm stretch, then each fault and what comes after it; returns the faults' names."""
        each = num_transfers // (2 * len(faults) + 1)
        self._work(each)
        met = []
        for fault in faults:
            name = f"{self.ladder.name}: {fault.name}"
            if why := fault.missing():
                self.tally.missing.append(f"{name} n/a ({why})")
                continue
            usual = median(self._rate(self.plan.window) for _ in range(5))
            before, until = self._counted(fault), self.tally.transfers + each
            started_s = self.clock.now_s()
            with fault.active(self.hierarchy):
                while self.tally.transfers < until or self._waits_for(fault, before, started_s):
                    fault.strike(self.hierarchy, self.rng)
                    self._work(10)
            if fault.word[0] and self._counted(fault) == before:
                self.tally.unmet.append(name)
            seconds = self._recover(usual)
            self.tally.recoveries[name] = seconds
            progress(f"{self.ladder.name}, {fault.name}: back after {seconds:.2f} s")
            self._work(each)
            met.append(name)
        return met

    def _waits_for(self, fault: Fault, before: int, started_s: float) -> bool:
        """Whether a tier has yet to meet a fault: one that failed is left alone for a while."""
        met = not fault.word[0] or self._counted(fault) > before
        return not met and self.clock.now_s() - started_s < MOST_WAIT_S

    def _counted(self, fault: Fault) -> int:
        """Times that its tier has counted it so far."""
        tier, word = fault.word
        if word == GONE:
            return self.hierarchy.mover.counters[tier].num_gone if tier else 0
        found = (each.faults for each in self.hierarchy.stats().tiers if each.name == tier)
        return sum(sum(f.values()) if word == ANY else f.get(word, 0) for f in found)

    def _recover(self, usual: float) -> float:
        started_s = self.clock.now_s()
        while self.clock.now_s() - started_s < MOST_WAIT_S:
            if self._rate(self.plan.window) >= BACK * usual:
                break
        return self.clock.now_s() - started_s

    def _rate(self, num_transfers: int) -> float:
        started_s, before = self.clock.now_s(), self.tally.transfers
        self._work(num_transfers)
        return (self.tally.transfers - before) / (self.clock.now_s() - started_s)

    def _work(self, num_transfers: int) -> None:
        until = self.tally.transfers + num_transfers
        while self.tally.transfers < until:
            newest = self.tally.transfers // DRIFT
            first = max(0, newest - int(self.rng.zipf(1.3)) % self.plan.num_keys)
            self._request([first + at for at in range(int(self.rng.integers(1, 5)))])

    def _request(self, numbers: list[int]) -> None:
        """Load the leading pages that are there, store the next one, as a prefix would."""
        keys = [_key(number) for number in numbers]
        for _ in range(100):
            if self.hierarchy.lookups.know(keys):
                break
            self.hierarchy.wait_io(0.001)
            self._deliver(-1)
        hits = 0
        while hits < len(keys) and self.hierarchy.lookups.lookup(keys[hits]) is Lookup.HIT:
            hits += 1
        if hits:
            self._load(keys[:hits], numbers[:hits])
        if hits < len(keys):
            page = content(numbers[hits], self.plan.page_bytes)
            self.hierarchy.store(keys[hits], page, NUM_SLICES)
            self.tally.transfers += 1
        self._deliver(-1)

    def _load(self, keys: list[bytes], numbers: list[int]) -> None:
        counted = self.num_counted()
        job = self.hierarchy.submit_load(keys)
        self.tally.transfers += len(keys)
        started_s = self.clock.now_s()
        while self.clock.now_s() - started_s < MOST_WAIT_S:
            pages = self._deliver(job)
            if pages is not None:
                missing = sum(page is None for page in pages)
                self.tally.broken_promises += missing
                self.tally.uncounted += max(0, missing - (self.num_counted() - counted))
                self._judge(pages, numbers)
                self.hierarchy.complete_load(job)
                return
            self.hierarchy.wait_io(0.001)
        self.tally.lost_requests += 1
        self.hierarchy.cancel_load(job)

    def _deliver(self, job: int) -> tuple[np.ndarray | None, ...] | None:
        found = None
        for result in self.hierarchy.poll():
            if result.job_id == job:
                found = result.pages
        return found

    def _judge(self, pages: tuple[np.ndarray | None, ...], numbers: list[int]) -> None:
        for page, number in zip(pages, numbers, strict=True):
            if page is not None:
                right = content(number, self.plan.page_bytes)
                self.tally.wrong_bytes += int(np.count_nonzero(page != right))

    def num_counted(self) -> int:
        """Faults and pages gone, as the tiers count them."""
        tiers = self.hierarchy.stats().tiers
        gone = sum(c.num_gone for c in self.hierarchy.mover.counters.values())
        return gone + sum(sum(tier.faults.values()) for tier in tiers)


def _key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def content(number: int, num_bytes: int) -> np.ndarray:
    """The page of a key: uint8 [num_bytes], other for every number."""
    words = np.arange(num_bytes // 8, dtype=np.uint64) + np.uint64(number << 32)
    return (words * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8)


def _figures(tally: Tally, counted: int, faults: list[str], served: Served) -> list[Figure]:
    slowest = max(tally.recoveries, key=lambda name: tally.recoveries[name])
    note = f"{tally.transfers:,} transfers; faults: {', '.join(faults + tally.missing)}"
    share = served.num_cached_tokens / max(1, served.num_prompt_tokens)
    return [
        Figure(name="fault_wrong_bytes", value=tally.wrong_bytes, unit="bytes", note=note),
        Figure(
            name="fault_lost_requests", value=served.num_lost,
            note=f"of {served.num_requests} requests to an engine through the same faults, on "
            f"disk, store and objects; {share:.0%} of their prompts' tokens were hits, "
            f"{served.num_loaded_pages} pages came up",
        ),
        Figure(
            name="fault_wrong_tokens", value=served.num_wrong_tokens,
            note=f"against the naive loop; {served.num_near_ties} near ties",
        ),
        Figure(
            name="fault_lost_loads", value=tally.lost_requests,
            note=f"loads without an end among the transfers, within {MOST_WAIT_S:.0f} s",
        ),
        Figure(
            name="fault_kinds_unmet", value=len(tally.unmet),
            note=f"faults that no tier has counted: {', '.join(tally.unmet) or 'none'}",
        ),
        Figure(
            name="fault_uncounted", value=tally.uncounted,
            note=f"{tally.broken_promises} promised pages did not come, {counted} faults and gone "
            "pages were counted",
        ),
        Figure(
            name="fault_recovery_s", value=tally.recoveries[slowest], unit="s",
            note=f"slowest: {slowest}; until {BACK:.0%} of the throughput before, over a window",
        ),
    ]  # fmt: skip
