"""An engine on the whole ladder: the same tokens, hits of another engine and after a restart."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.clock import ManualClock
from workbench.request import RequestStatus
from workbench.snapshot import decode_frame

POOL = {"cache.hbm_budget_mib": pages(32), "tiers.gate": False}
PROMPTS = [tokens(60, seed) for seed in range(5)]


def outputs(runner: Runner, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    found = []
    for prompt in prompts:
        found.append(runner.one(prompt, 6))
        runner.engine.hierarchy.wait_io()
    return found


def tier(runner: Runner, name: str) -> Any:
    return next(stats for stats in runner.engine.hierarchy.stats().tiers if stats.name == name)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    try:
        return outputs(runner)
    finally:
        runner.engine.close()


@pytest.mark.parametrize("write", ["back", "through", "selective"])
@pytest.mark.parametrize("shared", ["store", "valkey"])
def test_the_whole_ladder_gives_the_same_tokens(
    shared: str, write: str, tmp_path: Path, expected: list[list[int]]
) -> None:
    ladder = {"tiers.dram_mib": 0.02, "tiers.disk_mib": 0.2, "tiers.shared": shared,
              "tiers.shared_mib": 0.5 if shared == "store" else 8.0,
              "tiers.object_url": str(tmp_path), "tiers.write": write}  # fmt: skip
    runner = Runner(build(POOL | ladder))
    assert outputs(runner) == expected and outputs(runner) == expected
    assert runner.engine.fetch_counters.num_loaded_pages > 20
    assert tier(runner, "G3").num_stores > 0 and tier(runner, "G3.5").num_stores > 0
    assert not any(stats.faults for stats in runner.engine.hierarchy.stats().tiers)
    runner.engine.hierarchy.check_integrity(strict=True)
    snapshot = decode_frame(runner.engine.frame(1, state="running"))[0]
    assert [view.name for view in snapshot.tiers] == ["G1", "G2", "G3", "G3.5", "G4"]
    runner.engine.close()


@pytest.mark.parametrize("where", ["tiers.object_url", "tiers.disk_path"])
def test_a_later_engine_hits_what_an_earlier_one_left(
    where: str, tmp_path: Path, expected: list[list[int]]
) -> None:
    kept = {"tiers.disk_mib": 2.0, "tiers.disk_keep": True} if where == "tiers.disk_path" else {}
    settings = POOL | kept | {where: str(tmp_path)}
    first = Runner(build(settings))
    assert outputs(first) == expected
    first.engine.stack.pool.drop_idle_rows()
    first.engine.hierarchy.wait_io()
    first.engine.close()
    again = Runner(build(settings))
    assert outputs(again) == expected
    assert again.engine.fetch_counters.num_loaded_pages >= 10 * len(PROMPTS)
    again.engine.close()


def test_two_engines_share_objects(tmp_path: Path, expected: list[list[int]]) -> None:
    one, two = (Runner(build(POOL | {"tiers.object_url": str(tmp_path)})) for _ in range(2))
    assert outputs(one) == expected
    one.engine.stack.pool.drop_idle_rows()
    one.engine.hierarchy.wait_io()
    assert outputs(two) == expected
    assert two.engine.fetch_counters.num_loaded_pages >= 10 * len(PROMPTS)
    one.engine.close()
    two.engine.close()


def test_prefetch_gives_up_at_its_time() -> None:
    """Base time and a share for each 1,024 tokens, though a load may otherwise take 20 s."""
    clock = ManualClock()
    settings = {"tiers.disk_mib": 1.0, "tiers.disk_throttle_mb_s": 0.001}
    runner = Runner(build(POOL | settings | {"tiers.prefetch": "timeout"}, clock=clock))
    prompt = PROMPTS[0]
    first = runner.one(prompt, 4)
    runner.one(tokens(126, 1), 2)
    for _ in range(3):
        runner.engine.hierarchy.wait_io()
        clock.advance(1000.0)
        runner.step()
    again = runner.add(prompt, 4)
    runner.step(3)
    request = runner.engine.requests[again]
    assert request.status is RequestStatus.LOADING
    clock.advance(1.9)
    runner.step()
    assert request.status is RequestStatus.LOADING
    clock.advance(0.2)
    runner.step()
    assert request.status is RequestStatus.RUNNING
    runner.drain()
    assert runner.outputs[again] == first
    assert runner.engine.fetch_counters.num_late_loads == 1


def test_best_effort_does_not_wait_and_the_next_one_hits(expected: list[list[int]]) -> None:
    settings = {"tiers.dram_mib": 0.06, "tiers.disk_mib": 1.0, "tiers.prefetch": "best_effort"}
    runner = Runner(build(POOL | settings))
    assert outputs(runner) == expected
    again = runner.add(PROMPTS[0], 6)
    runner.step()
    assert runner.engine.requests[again].status is not RequestStatus.LOADING
    runner.drain()
    assert runner.outputs[again] == expected[0]
    runner.engine.hierarchy.wait_io()
    assert tier(runner, "G3").num_loads > 0, "its pages came up meanwhile"
    assert outputs(runner) == expected
    runner.engine.close()


@pytest.mark.parametrize("staged", [True, False])
def test_a_waiting_requests_pages_come_up_to_dram(expected: list[list[int]], staged: bool) -> None:
    settings = {"tiers.dram_mib": 0.06, "tiers.disk_mib": 1.0, "tiers.prestage": staged,
                "scheduling.max_num_seqs": 1}  # fmt: skip
    runner = Runner(build(POOL | settings))
    engine = runner.engine
    assert outputs(runner) == expected
    runner.add(tokens(8, 9), 40)  # keeps the one place busy
    runner.step(2)
    again = runner.add(PROMPTS[0], 6)
    before = tier(runner, "G3").num_loads
    for _ in range(6):
        runner.step()
        engine.hierarchy.wait_io()
    request = engine.requests[again]
    assert request.status is RequestStatus.WAITING
    assert (tier(runner, "G3").num_loads > before) == staged
    runner.drain()
    assert runner.outputs[again] == expected[0]
    engine.close()
