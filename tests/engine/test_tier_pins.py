"""Leases and pins from outside: prompt caching below HBM, the inspector, the command, the store."""

import numpy as np
import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache_control import CacheBreakpoint
from workbench.clock import ManualClock
from workbench.engine.views.tier_report import hold_block, tiers_report
from workbench.errors import SettingError
from workbench.snapshot import FLAG_PINNED, decode_frame
from workbench.tier_views import HoldView
from workbench.views import BlockView

DRAM_PAGES = 40
TIER = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": pages(DRAM_PAGES)}
CACHING = {"cache.prompt_caching": "explicit", "cache.min_cacheable_tokens": 8}


def entries(runner: Runner) -> dict[str, tuple[BlockView, int]]:
    """Every entry of DRAM by key: what the inspector shows, and its cell's state."""
    _, cells, _ = decode_frame(runner.engine.frame(1, state="running"))
    state = cells[1]["state"]
    views = [(runner.engine.inspect("G2", int(at)), int(state[at])) for at in np.flatnonzero(state)]
    return {view.key: (view, flags) for view, flags in views}


def test_what_prompt_caching_keeps_goes_last_below_hbm_too() -> None:
    runner = Runner(build(TIER | CACHING, clock=ManualClock()))
    runner.one(tokens(60, 1), 4, cache_control=[CacheBreakpoint(at=40, ttl="1h")])
    engine = runner.engine
    keys = [key.hex() for key in engine.stack.manager.keys.row_keys(
        next(iter(engine.finished.values())), "fp32@model")][:10]  # fmt: skip
    for seed in range(2, 5):
        runner.one(tokens(120, seed), 4)
    found = entries(runner)
    kept = [found[key] for key in keys if key in found]
    assert kept and all(view.why == "soft" and 0 < view.held_s <= 3600.0 for view, _ in kept)
    assert all(flags & FLAG_PINNED for _, flags in kept)
    others = [view for key, (view, _) in found.items() if key not in keys]
    assert others and all(view.why == "stored" and view.held_s is None for view in others)
    assert max(view.evict_rank for view in others) < min(view.evict_rank for view, _ in kept)
    assert tiers_report(engine).tiers[0].num_soft == len(kept)
    for seed in range(5, 9):  # many times DRAM's size passes by
        runner.one(tokens(120, seed), 4)
    assert {view.key for view, _ in kept} <= entries(runner).keys()
    engine.clock.advance(3600.0)
    runner.one(tokens(120, 9), 4)
    assert all(view.why == "stored" for view, _ in entries(runner).values())
    engine.close()


def test_a_block_is_leased_pinned_and_let_go() -> None:
    runner = Runner(build(TIER, clock=ManualClock()))
    for seed in (1, 2):
        runner.one(tokens(120, seed), 4)
    engine = runner.engine
    key = next(iter(entries(runner)))
    assert hold_block(engine, key[:10], "lease", 60.0).key == key
    view, _ = entries(runner)[key]
    assert (view.why, view.held_s, view.evict_rank) == ("leased", 60.0, 0)
    assert hold_block(engine, key, "hard", 0.0) == HoldView(key=key, tiers=["G2"])
    view, _ = entries(runner)[key]
    assert (view.why, view.held_s) == ("held", None)
    for seed in range(3, 6):
        runner.one(tokens(120, seed), 4)
    assert key in entries(runner) and tiers_report(engine).tiers[0].num_held == 1
    assert hold_block(engine, key, "none", 0.0).key == key
    for seed in range(6, 9):
        runner.one(tokens(120, seed), 4)
    assert key not in entries(runner)
    assert hold_block(engine, key, "hard", 0.0) == hold_block(engine, "", "hard", 0.0) == HoldView()
    engine.close()


def test_a_hold_that_does_not_exist_is_refused() -> None:
    engine = build(TIER)
    with pytest.raises(SettingError, match="unknown hold 'glue': choose one of lease, hard, soft"):
        hold_block(engine, "ab", "glue", 1.0)
    for seconds in (0.0, -1.0, 90_000.0, float("nan")):
        with pytest.raises(SettingError, match="give seconds above 0, at most 86400"):
            hold_block(engine, "ab", "lease", seconds)
    engine.close()


def test_a_shared_store_tells_of_its_pages_and_leases() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32), "tiers.shared": "store",
                           "tiers.shared_mib": 4.0}))  # fmt: skip
    engine = runner.engine
    assert tiers_report(engine).store is None  # it is being asked
    for seed in (1, 2):
        runner.one(tokens(120, seed), 4)
    assert engine.hierarchy.wait_io()
    engine.hierarchy.poll()
    tiers_report(engine)
    assert engine.hierarchy.wait_io()
    store = tiers_report(engine).store
    assert store is not None and store.pages > 0
    assert (store.leased, store.held, store.evicted, store.expired) == (0, 0, 0, 0)
    engine.close()
