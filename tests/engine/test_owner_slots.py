"""Owner slots: one request each, given with its first blocks; past the last slot nobody is named.

A slot is a byte of the frame, so that 255 requests can be told apart; a dropped file holds more.
"""

import numpy as np

from tests.engine.harness import Runner, build, tokens
from workbench.snapshot import NO_OWNER, decode_frame

MANY = 300


def looked(runner: Runner) -> tuple:
    return decode_frame(runner.engine.frame(1, state="running"))


def check_names(runner: Runner) -> None:
    """Every cell's slot names a request whose table holds that block, if it names any."""
    snapshot, _, _ = looked(runner)
    engine = runner.engine
    slots = [request.owner for request in engine.requests.values() if request.owner != NO_OWNER]
    assert len(slots) == len(set(slots)), "two requests share a slot"
    assert len(snapshot.owner_labels) == len(slots) and str(NO_OWNER) not in snapshot.owner_labels
    pool = engine.stack.pool
    for request_id, blocks in engine.stack.manager.requests.items():
        held = blocks.blocks(0)
        for slot in np.unique(pool.owner[held][pool.ref_cnt[held] == 1]):
            assert snapshot.owner_labels.get(str(slot), request_id) == request_id


def test_requests_in_the_queue_take_no_slot() -> None:
    runner = Runner(build({"scheduling.max_num_seqs": 4}))
    for number in range(MANY):
        runner.add(tokens(9, seed=number), 2)
    assert {request.owner for request in runner.engine.requests.values()} == {NO_OWNER}
    seen = set()
    for _ in range(40):
        runner.step()
        check_names(runner)
        running = [request.owner for request in runner.engine.scheduler.running]
        assert NO_OWNER not in running
        seen |= set(running)
    assert len(seen) > 4


def test_more_owners_than_slots() -> None:
    changes = {"scheduling.max_num_seqs": 512, "scheduling.token_budget": 4096,
               "cache.hbm_budget_mib": 4.0}  # fmt: skip
    runner = Runner(build(changes))
    for number in range(MANY):
        runner.add(tokens(5, seed=number), 3)
    runner.until(lambda: len(runner.engine.scheduler.running) == MANY, 5)
    check_names(runner)
    owners = [request.owner for request in runner.engine.requests.values()]
    assert sorted(set(owners)) == list(range(NO_OWNER + 1))
    assert owners.count(NO_OWNER) == MANY - NO_OWNER
    views = looked(runner)[0].requests
    assert len({view.owner for view in views if view.owner != NO_OWNER}) == NO_OWNER
    runner.drain()
    runner.add(tokens(9), 4)
    runner.step()
    assert next(iter(runner.engine.requests.values())).owner != NO_OWNER


def test_a_preempted_request_keeps_its_slot() -> None:
    runner = Runner(build())
    first = runner.add(tokens(9), 8)
    runner.step()
    slot = runner.engine.requests[first].owner
    runner.engine.scheduler.preempt_all("test")
    runner.add(tokens(9, seed=1), 8)
    runner.step()
    owners = [request.owner for request in runner.engine.requests.values()]
    assert owners[0] == slot and len(set(owners)) == 2
    check_names(runner)
