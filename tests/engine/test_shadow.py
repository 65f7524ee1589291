"""I11: the identity setting on the same schedule costs exactly nothing; a lossy one does."""

from typing import Any

import pytest

from tests.engine.harness import Runner, build, tokens
from workbench.clock import ManualClock


def shadowed(changes: dict, num_tokens: int = 30, steps_before: int = 0) -> object:
    runner = Runner(build(changes))
    request_id = runner.add(tokens(50), num_tokens)
    runner.step(steps_before)
    runner.engine.start_shadow(request_id)
    runner.drain()
    return runner.engine.shadow.view()


@pytest.mark.parametrize("changes", [
    {}, {"cache.grouping": "halves"}, {"cache.block_size": 16}, {"scheduling.chunk_tokens": 7},
    {"cache.allocation": "contiguous"},
])  # fmt: skip
def test_identity_is_exact(changes: dict) -> None:
    view = shadowed(changes)
    assert (view.num_scored_tokens, view.num_positions) == (0, 30)
    assert view.kl_mean == 0.0 and view.kl_last == 0.0
    assert view.agreement == 1.0 and view.first_differing_token == -1
    assert view.state == "finished"


def test_shadow_that_begins_in_the_middle() -> None:
    view = shadowed({}, steps_before=9)
    assert 0 < view.num_positions < 30
    assert view.kl_mean == 0.0 and view.agreement == 1.0


def test_each_format_has_its_price() -> None:
    kl = {name: shadowed({"cache.k_format": name, "cache.v_format": name}).kl_mean
          for name in ("bf16", "int8", "int4")}  # fmt: skip
    assert 0 < kl["bf16"] < kl["int8"] < kl["int4"]


def test_eviction_has_its_price() -> None:
    view = shadowed({"retention.policy": "sink+window", "retention.budget_tokens": 16,
                     "retention.sink_tokens": 4, "retention.window_tokens": 8})  # fmt: skip
    assert view.kl_mean > 0


def test_shadow_changes_no_tokens_and_gives_its_memory_back() -> None:
    prompt = tokens(50)
    plain = Runner(build()).one(prompt, 20)
    runner = Runner(build())
    request_id = runner.add(prompt, 20)
    runner.engine.start_shadow(request_id)
    assert runner.engine.shadow.num_bytes > 0
    runner.drain()
    assert runner.outputs[request_id] == plain
    runner.engine.stop_shadow()
    assert runner.engine.shadow is None


def test_the_first_differing_token_is_where_two_plain_runs_part() -> None:
    """It is a place in the text, prompt included."""
    coarse = {"cache.k_format": "int4", "cache.v_format": "int4"}
    found = []
    for seed in range(8):
        prompt = tokens(50, seed)
        plain, rough = Runner(build()).one(prompt, 24), Runner(build(coarse)).one(prompt, 24)
        parted = [at for at, pair in enumerate(zip(plain, rough, strict=True)) if len({*pair}) > 1]
        runner = Runner(build(coarse))
        request_id = runner.add(prompt, 24)
        runner.engine.start_shadow(request_id)
        runner.drain()
        assert runner.outputs[request_id] == rough
        view = runner.engine.shadow.view()
        assert view.first_differing_token == (50 + parted[0] if parted else -1)
        if parted:
            text = runner.engine.model.tokenizer.token_text
            at = parted[0]
            assert view.differing_text == f"{text(plain[at])} → {text(rough[at])}"
        found.append(view.first_differing_token)
        if max(found) > 50:
            return
    raise AssertionError(f"no prompt parted after its first token: {found}")


def test_what_the_shadow_takes_is_no_latency_of_the_engine() -> None:
    """Its second pass takes 10 s of this clock; without it no time passes at all."""
    clock = ManualClock()
    runner = Runner(build({"tiers.gate": True, "tiers.dram_mib": 1.0}, clock=clock))
    engine = runner.engine
    request_id = runner.add(tokens(50), 8)
    engine.start_shadow(request_id)
    twin = engine.shadow._runner.run

    def slow(*args: Any, **more: Any) -> Any:
        clock.advance(10.0)
        return twin(*args, **more)

    engine.shadow._runner.run = slow
    runner.drain()
    assert clock.now_s() >= 80.0 and engine.shadow.view().num_positions == 8
    assert engine.metrics.ttft_ms.values() == [0.0]
    assert engine.metrics.itl_ms.values() == [0.0] * 7
    assert set(engine.metrics.step_ms.values()) == {0.0}
    assert engine.recorder.last.wall_ms == engine.recorder.last.other_ms == 0.0
    assert engine.metrics.recompute_s(100) == 0.0


def test_beside_other_requests_only_rounding_differs() -> None:
    runner = Runner(build())
    ids = [runner.add(tokens(40 + seed, seed), 20) for seed in range(4)]
    runner.engine.start_shadow(ids[0])
    runner.drain()
    view = runner.engine.shadow.view()
    assert view.num_positions == 20 and view.kl_mean < 1e-6 and view.agreement == 1.0
