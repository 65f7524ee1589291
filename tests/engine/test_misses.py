"""Why did this request miss? Each answer from the situation it stands for, with its numbers."""

import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.clock import ManualClock
from workbench.request import MissReason

PROMPT = tokens(40)


def ask(runner: Runner, prompt: list[int], **more: str) -> MissReason:
    request_id = runner.add(prompt, 2, **more)
    request = runner.engine.requests[request_id]
    runner.until(lambda: request.miss is not None)
    runner.drain()
    assert request.miss is not None
    return request.miss


def test_first() -> None:
    runner = Runner(build())
    assert ask(runner, PROMPT) == MissReason(kind="first")
    assert ask(runner, [250 - token for token in PROMPT]) == MissReason(kind="first")


@pytest.mark.parametrize("same", [1, 3, 4, 5, 22, 23, 35])
def test_differs_names_the_first_differing_token(same: int) -> None:
    runner = Runner(build())
    runner.one(PROMPT, 2)
    other = PROMPT[:same] + [token ^ 1 for token in PROMPT[same:]]
    assert ask(runner, other) == MissReason(kind="differs", token_index=same, detail="1")


@pytest.mark.parametrize("length", [1, 3, 4])
def test_short(length: int) -> None:
    """One token is always computed, so a text of one block is too short to hit."""
    runner = Runner(build())
    runner.one(PROMPT, 2)
    assert ask(runner, PROMPT[:length]) == MissReason(kind="short", token_index=length)


@pytest.mark.parametrize(("length", "known"), [(5, 4), (8, 4), (9, 8), (40, 36)])
def test_full(length: int, known: int) -> None:
    runner = Runner(build())
    runner.one(PROMPT, 2)
    assert ask(runner, PROMPT[:length]) == MissReason(kind="full", token_index=known)


def test_evicted_names_the_step() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    runner.one(PROMPT, 2)
    runner.one(tokens(110, 1), 2)  # 28 blocks: takes 6 of the prompt's, its tail first
    steps = {event.step for event in runner.engine.events_since(0) if event.kind == "evict"}
    reason = ask(runner, PROMPT)
    assert reason.kind == "evicted" and reason.step in steps
    assert 0 < reason.token_index < 40 and reason.token_index % 4 == 0


def test_off() -> None:
    runner = Runner(build({"cache.prefix_caching": False}))
    runner.one(PROMPT, 2)
    assert ask(runner, PROMPT) == MissReason(kind="off")


def test_tag_of_another_tenant() -> None:
    runner = Runner(build())
    runner.one(PROMPT, 2, salt="a")
    assert ask(runner, PROMPT, salt="b") == MissReason(kind="tag", token_index=40, detail="salt")


def test_tag_of_another_format() -> None:
    """The block is there, but it was recoded, and only exact ones may be hit."""
    runner = Runner(build({"cache.reuse": "exact"}))
    runner.one(PROMPT, 2)
    runner.engine.apply({"cache.k_format": "int8", "cache.v_format": "int8"})
    assert ask(runner, PROMPT) == MissReason(
        kind="tag", token_index=0, detail="int8@model<fp32@model"
    )


def test_equal_text_that_a_rebuild_dropped_differs_nowhere() -> None:
    runner = Runner(build())
    runner.one(PROMPT, 2)
    runner.engine.apply({"cache.grouping": "halves"})
    assert ask(runner, PROMPT).kind == "first"


# the gate: 14 pages of 2,048 bytes at 0.01 MB/s are 2.87 s, 0.0512 s for each of their 56 tokens


@pytest.mark.parametrize(("recompute_s", "throttle", "gate", "fetched"), [
    (0.050, 0.01, True, False), (0.053, 0.01, True, True), (0.050, 0.01, False, True),
    (0.050, 0.0, True, True), (0.002, 0.2, True, False), (0.003, 0.2, True, True),
])  # fmt: skip
def test_fetch_or_recompute(recompute_s: float, throttle: float, gate: bool, fetched: bool) -> None:
    clock = ManualClock()
    settings = {"tiers.dram_mib": 0.5, "tiers.gate": gate, "cache.hbm_budget_mib": pages(32)}
    runner = Runner(build(settings, clock=clock))
    engine, prompt = runner.engine, tokens(60)
    first = runner.one(prompt, 4)
    runner.one(tokens(126, 1), 2)  # pushes the prompt down
    engine.apply({"tiers.dram_throttle_mb_s": throttle})
    for _ in range(100):  # the average forgets the runs above, which took no time
        engine.metrics.prefill.observe(1, recompute_s)
    again = runner.add(prompt, 4)
    request = engine.requests[again]
    runner.step()
    clock.advance(60.0)
    runner.drain()
    assert runner.outputs[again] == first
    counters = engine.fetch_counters
    assert request.miss is not None
    if fetched:
        assert counters.num_loaded_pages == 14 and counters.num_gated == 0
        assert request.miss.kind == "full" and request.num_cached_tokens == 56
    else:
        assert counters.num_loaded_pages == 0 and counters.num_gated == 1
        assert request.miss.kind == "gate" and request.num_cached_tokens == 0
        assert counters.last_recompute_s == pytest.approx(56 * recompute_s)
