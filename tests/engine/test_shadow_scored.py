"""The shadow scores what the quality lab scores: positions that read compressed entries."""

from typing import Any

import numpy as np
import pytest

from tests.engine.harness import Runner, build, tokens
from workbench.engine.compressed_reads import reads_compressed


def followed(changes: dict[str, Any], prompt: int, count: int) -> tuple[Any, list[float]]:
    """The shadow's last view, and KL of every position in order."""
    runner = Runner(build(changes))
    request_id = runner.add(tokens(prompt), count)
    runner.engine.start_shadow(request_id)
    each: list[float] = []
    while runner.engine.has_work():
        runner.step()
        view = runner.engine.shadow.view()
        if view.num_positions > len(each):
            each.append(view.kl_last)
    return runner.engine.shadow.view(), each


@pytest.mark.parametrize("changes, prompt, first", [
    # the first page of 4 tokens stays exact, and later ones are written in codes at once
    ({"cache.k_format": "int4", "cache.v_format": "int4", "cache.sink_tokens": 4}, 2, 4),
    # the newest 8 tokens, and the page that is being filled, wait exactly
    ({"cache.k_format": "int4", "cache.v_format": "int4", "cache.residual_tokens": 8}, 3, 12),
])  # fmt: skip
def test_positions_before_anything_is_compressed_do_not_count(
    changes: dict[str, Any], prompt: int, first: int
) -> None:
    view, each = followed(changes, prompt, 24)
    positions = np.arange(prompt - 1, prompt - 1 + 24)
    counted = positions >= first
    assert 0 < counted.sum() < 24
    assert (view.num_scored_tokens, view.num_positions) == (counted.sum(), 24)
    assert np.array(each)[~counted].max() < 1e-9 < view.kl_mean
    assert view.kl_mean == pytest.approx(np.array(each)[counted].mean())


def test_only_positions_after_an_eviction_count() -> None:
    small = {"budget_tokens": 32, "sink_tokens": 4, "window_tokens": 8, "policy": "sink+window"}
    changes = {f"retention.{name}": value for name, value in small.items()}
    view, each = followed(changes, 20, 40)
    assert 0 < view.num_scored_tokens < view.num_positions == 40
    exact = view.num_positions - view.num_scored_tokens
    assert each[:exact] == [0.0] * exact and min(each[exact:]) > 0
    assert view.kl_mean == pytest.approx(np.mean(each[exact:]))


def test_with_nothing_compressed_every_position_counts() -> None:
    view, each = followed({}, 20, 10)
    assert (view.num_scored_tokens, view.num_positions) == (0, 10)
    assert view.kl_mean == 0.0 and view.agreement == 1.0 and each == [0.0] * 10


def test_what_bytes_went_through_before_counts_too() -> None:
    """A recode to exact pages gives nothing back; a lossy codec's name is in the lineage."""
    runner = Runner(build({"cache.k_format": "int4", "cache.v_format": "int4"}))
    request_id = runner.add(tokens(40), 30)
    runner.step(6)
    engine = runner.engine
    request, newest = engine.requests[request_id], np.array([44])
    engine.apply({"cache.k_format": "fp32", "cache.v_format": "fp32"})
    assert reads_compressed(engine, request, newest).all()
    manager = engine.stack.manager
    blocks, label = manager.requests[request_id], manager.keys.format_label
    for lineage, lossy in {
        label: False, f"{label}<fp32@model": False, f"cachegen<{label}": True,
        f"part0.95<{label}": True, f"{label}<int8@model": True, f"{label}<fp32/int8@model": True,
    }.items():  # fmt: skip
        blocks.lineage = lineage
        assert reads_compressed(engine, request, newest).all() == lossy, lineage
