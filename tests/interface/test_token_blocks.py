"""Pages of one token block are found again, whatever shares, evicts or frees them."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import build, spec, tokens
from workbench.engine.engine import Engine
from workbench.snapshot import STATE_FREE, decode_frame, decode_token_blocks

RETENTION = {
    "cache.prefix_caching": False, "retention.policy": "h2o", "retention.budget_tokens": 16,
    "retention.sink_tokens": 2, "retention.window_tokens": 6, "retention.split": "pyramid",
}  # fmt: skip


def running(grouping: str, **changes: Any) -> Engine:
    """An engine amid three requests, two of which share a prefix."""
    engine = build({"cache.grouping": grouping, "cache.hbm_budget_mib": 1.0} | changes)
    first = tokens(40)
    for prompt in (first, first[:24] + tokens(12, 1), tokens(30, 2)):
        engine.add_request(spec(prompt, max_tokens=24))
        for _ in range(6):
            engine.step()
    return engine


@pytest.mark.parametrize("grouping", ["layer", "head"])
@pytest.mark.parametrize("kept", ["all", "budget"])
def test_each_page_in_use_is_in_one_token_block(grouping: str, kept: str) -> None:
    engine = running(grouping, **(RETENTION if kept == "budget" else {}))
    frame = engine.frame(1, state="running")
    snapshot, cells, tables = decode_frame(frame)
    blocks = decode_token_blocks(frame)
    assert blocks is not None and snapshot.groups is not None
    num_groups = len(snapshot.groups.rows) * snapshot.groups.num_columns
    assert (num_groups, snapshot.groups.rows) == ({"layer": 2, "head": 4}[grouping], ["0", "1"])
    used = cells[0]["state"] & 7 != STATE_FREE
    assert np.array_equal(blocks.parts >= 0, used)
    members = defaultdict(list)
    for part in blocks.parts[used]:
        members[part // num_groups].append(part % num_groups)
    assert sorted(members) == list(range(snapshot.groups.num_token_blocks))
    assert all(len(set(groups)) == len(groups) for groups in members.values())
    assert len(tables) == sum(request.num_pages for request in snapshot.requests)
    assert len(blocks.tables) == sum(snapshot.groups.counts)
    kept_pages = [len(groups) for groups in members.values()]
    assert (min(kept_pages) < num_groups) == (kept == "budget"), "partial squares"


def test_a_request_reads_its_token_blocks_in_order() -> None:
    engine = running("head")
    frame = engine.frame(1, state="running")
    snapshot, _, tables = decode_frame(frame)
    blocks = decode_token_blocks(frame)
    assert blocks is not None and snapshot.groups is not None
    seen, at, page = [], 0, 0
    for request, count in zip(snapshot.requests, snapshot.groups.counts, strict=True):
        own = blocks.tables[at : at + count]
        assert blocks.numbers[own].tolist() == list(range(count))
        first_group = blocks.parts[tables[page : page + request.num_pages]]
        assert (first_group % 4 == 0).all() and (first_group // 4).tolist() == own.tolist()
        seen.append(set(own.tolist()))
        at, page = at + count, page + request.num_pages
    assert len(seen[0] & seen[1]) + len(seen[1] & seen[2]) + len(seen[0] & seen[2]) == 6


def test_one_group_has_no_token_blocks_and_the_same_frame() -> None:
    frame = running("model").frame(1, state="running")
    assert decode_frame(frame)[0].groups is None and decode_token_blocks(frame) is None
