"""Leases and pins on shared tiers: the store is asked to hold; where nobody can, that is said."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.panels.tiers_journey import told_of_hold
from app.text import load_texts
from tests.engine.harness import Runner, build, pages, tokens
from tests.spatial.conftest import Harness
from workbench.clock import ManualClock
from workbench.engine.views.tier_report import hold_block
from workbench.lab.fault_kinds import StoreProcess
from workbench.spatial.hierarchy import store_holds
from workbench.tier_views import HoldView

POOL = {"shared": "store", "shared_mib": 1.0}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Settings of a tier on a store for about 80 pages, which every engine may fill."""
    (tmp_path / "store").mkdir(mode=0o700)
    process = StoreProcess(f"ipc://{tmp_path}/store/socket", 1.0)
    with process.serving():
        yield POOL | {"shared_address": process.address}


def fill(t: Harness, numbers: range) -> None:
    for number in numbers:
        assert t.store(t.key(number))
        t.settle()


def push_out(harness: Any, store: dict[str, Any], first: int = 1000) -> None:
    """Another engine puts twice as many pages as the store holds."""
    other = harness(0, 0, **store)
    fill(other, range(first, first + 180))
    assert other.load([other.key(first + 179)]) == ["G3.5"]


def test_a_shared_store_holds_what_is_pinned_and_leased(harness: Any, store: Any) -> None:
    t = harness(0, 0, ManualClock(), **store)
    fill(t, range(4))
    assert t.h.holds.tiers_with(t.key(0)) == [("G3.5", True)]
    assert t.h.holds.pin(t.key(0))
    assert t.h.holds.pin(t.key(1), 60.0) and t.h.holds.pin(t.key(2), 0.05)
    t.h.holds.renew()
    t.settle()
    time.sleep(0.2)  # the store's own clock ends the short lease
    push_out(harness, store)
    keys = [t.key(number) for number in range(4)]
    assert t.load(keys) == ["G3.5", "G3.5", "", ""], "the last was never held"


def test_holds_are_renewed_as_long_as_they_last(
    harness: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_holds, "HOLD_S", 0.5)
    monkeypatch.setattr(store_holds, "RENEW_S", 0.1)
    t = harness(0, 0, ManualClock(), **store)  # its clock stands, as that of a paused engine
    fill(t, range(2))
    assert t.h.holds.pin(t.key(0)) and t.h.holds.pin(t.key(1))
    for _ in range(12):
        time.sleep(0.1)
        t.h.holds.renew()
    t.h.holds.unpin(t.key(1))
    for _ in range(8):
        time.sleep(0.1)
        t.h.holds.renew()
    t.settle()
    monkeypatch.setattr(store_holds, "HOLD_S", 30.0)
    t.h.mover.store_holds.changed(t.key(0))
    t.h.holds.renew()
    t.settle()
    push_out(harness, store)
    assert t.load([t.key(0), t.key(1)]) == ["G3.5", ""]


def test_a_page_that_goes_last_is_used_again_and_again(harness: Any, store: Any) -> None:
    t = harness(0, 0, ManualClock(), **store)
    fill(t, range(2))
    assert t.h.holds.pin(t.key(0), 1800.0, soft=True)
    fill(t, range(2, 40))
    t.h.mover.store_holds._due_s = 0.0  # ten seconds later
    t.h.holds.renew()
    t.settle()
    other = harness(0, 0, **store)
    fill(other, range(1000, 1060))  # some have to go, those that were not used for longest
    assert t.load([t.key(0), t.key(1)]) == ["G3.5", ""]


def test_a_hold_follows_its_block_into_the_store(harness: Any, store: Any) -> None:
    t = harness(4, 0, ManualClock(), write="through", **store)
    fill(t, range(1, 3))
    t.h.holds.renew()
    assert t.store(t.key(0)) and t.h.holds.pin(t.key(0))
    t.settle()  # it is in the store now, too
    t.h.holds.renew()
    t.settle()
    push_out(harness, store)
    other = harness(0, 0, **store)
    assert not other.h.lookups.know([other.key(0), other.key(1)])
    other.settle()
    assert other.load([other.key(0), other.key(1)]) == ["G3.5", ""]


def test_a_pool_that_evicts_by_itself_is_refused(harness: Any) -> None:
    t = harness(0, 0, shared="valkey", shared_mib=8.0)
    fill(t, range(1))
    assert t.h.holds.tiers_with(t.key(0)) == [("G3.5", False)]
    assert not t.h.holds.pin(t.key(0)) and t.h.holds.left_s(t.key(0)) is None
    t = harness(1, 0, shared="valkey", shared_mib=8.0, write="through")
    fill(t, range(1))
    assert t.h.holds.tiers_with(t.key(0)) == [("G2", True), ("G3.5", False)] and t.h.holds.pin(
        t.key(0)
    )


def test_the_answer_says_where_a_hold_does_nothing(tmp_path: Path) -> None:
    runner = Runner(build({
        "cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 1.0, "tiers.shared": "valkey",
        "tiers.shared_mib": 8.0, "tiers.object_url": str(tmp_path), "tiers.write": "through",
    }))  # fmt: skip
    for seed in (1, 2):
        runner.one(tokens(120, seed), 4)
        runner.engine.hierarchy.wait_io()
        runner.engine.hierarchy.poll()
    key = runner.engine.hierarchy.entries("G4")[0][0].hex()
    held = hold_block(runner.engine, key, "hard", 0.0)
    assert held == HoldView(key=key, tiers=["G2", "G4"], loose=["G3.5"], others=["G4"])
    texts = load_texts()
    told = told_of_hold(texts, held, "hard", key[:12])
    assert told.startswith(f"Block {key[:12]} is pinned") and "In G3.5 nothing can hold" in told
    assert told.endswith("In G4 other engines that share it may still delete it.")
    refused = told_of_hold(texts, HoldView(key=key, loose=["G3.5"]), "lease", key[:12])
    assert refused.startswith("In G3.5 nothing can hold block") and "leased" not in refused
    runner.engine.close()
