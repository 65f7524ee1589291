"""Pages are verified as they are copied into HBM: a damaged one begins what is computed anew."""

from typing import Any

import pytest

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.cache import page_copy, page_store
from workbench.request import Request, RequestStatus

PROMPT = tokens(60, 0)  # 14 blocks may be hit
SETTINGS = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 0.5}


def below(grouping: str = "model", **more: Any) -> Runner:
    """An engine whose DRAM has the prompt, and whose HBM does not."""
    runner = Runner(build(SETTINGS | {"cache.grouping": grouping} | more))
    runner.one(PROMPT, 4)
    runner.engine.stack.pool.drop_idle_rows()
    runner.engine.hierarchy.wait_io()
    return runner


def keys_of(runner: Runner, request: Request) -> list[bytes]:
    keys = runner.engine.stack.manager.keys
    return keys.row_keys(request, keys.lineages[0])[:14]


def damage(runner: Runner, key: bytes) -> None:
    entry = runner.engine.hierarchy.mover.dram.get(key)
    assert entry is not None and entry.buffer is not None
    entry.buffer[entry.page_bytes // 2] ^= 4


def finish(runner: Runner, request: Request) -> None:
    runner.drain()
    assert request.status is RequestStatus.FINISHED_LENGTH
    assert_naive(model(), PROMPT, runner.outputs[request.request_id])
    stats = runner.engine.hierarchy.stats()
    assert stats.num_jobs == 0, "what was loaded is let go"
    runner.engine.hierarchy.check_integrity(strict=True)
    runner.engine.close()


@pytest.mark.parametrize("grouping", ["model", "layer", "head"])
@pytest.mark.parametrize("bad", [[0], [6], [13], [3, 9], [9, 3], list(range(14))])
def test_pages_in_front_of_a_damaged_one_are_used(grouping: str, bad: list[int]) -> None:
    runner = below(grouping)
    request = runner.engine.requests[runner.add(PROMPT, 4)]
    runner.step()
    assert request.status is RequestStatus.LOADING or request.num_cached_tokens == 0
    keys = keys_of(runner, request)
    for number in bad:
        damage(runner, keys[number])
    runner.until(lambda: request.first_scheduled_s)
    assert request.num_cached_tokens == 4 * min(bad), "each request's hit ends before the first"
    counters = runner.engine.fetch_counters
    assert counters.num_failed_pages == 1 and counters.num_loaded_pages == min(bad)
    dram = runner.engine.hierarchy.stats().tiers[0]
    assert dict(dram.faults) == {"corrupt": 1}
    assert runner.engine.hierarchy.mover.dram.get(keys[min(bad)]) is None, "it is gone"
    finish(runner, request)


def test_several_requests_beside_each_other_and_a_small_hbm() -> None:
    runner = below()
    ids = [runner.add(PROMPT[: 60 - 4 * at], 6) for at in range(3)]
    runner.step()
    damage(runner, keys_of(runner, runner.engine.requests[ids[0]])[5])
    runner.drain()
    for at, request_id in enumerate(ids):
        assert_naive(model(), PROMPT[: 60 - 4 * at], runner.outputs[request_id])
    runner.engine.close()


def test_a_page_is_hashed_once_on_its_way_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the copy itself; a second pass over all bytes would cost a third of the bandwidth."""
    hashed: list[int] = []
    whole = page_copy.copy_verified

    def seen(source: Any, out: Any, checksums: Any) -> bool:
        hashed.append(len(source))
        return whole(source, out, checksums)

    monkeypatch.setattr(page_store, "copy_verified", seen)
    monkeypatch.setattr("workbench.spatial.hierarchy.load_jobs.slice_checksums", None)  # not called
    runner = below()
    request = runner.engine.requests[runner.add(PROMPT, 4)]
    runner.until(lambda: request.num_cached_tokens)
    assert request.num_cached_tokens == 56 and len(hashed) == 14
    finish(runner, request)


def test_swapped_pages_are_verified_before_they_are_delivered() -> None:
    runner = Runner(build(SETTINGS | {"scheduling.preemption": "swap"}))
    request = runner.engine.requests[runner.add(PROMPT, 12)]
    runner.until(lambda: request.status is RequestStatus.RUNNING)
    runner.step(4)
    runner.engine.scheduler.preempt(request, "test")
    runner.engine.stack.pool.drop_idle_rows()
    for entry in runner.engine.hierarchy.mover.dram.all_entries()[:1]:
        entry.buffer[7] ^= 1
    finish(runner, request)
