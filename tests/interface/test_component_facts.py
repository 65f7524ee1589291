"""What the picture says of blocks, tiers and states of a real engine, without a browser."""

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.snapshot import decode_frame, encode_frame

from .component_frames import Plan, frame_of
from .component_node import run_node

LINES = """const { blockLine, blockFacts } = await use("describe");
  const { ownersOf } = await use("inspector");
  return values.views.map((view) => {
    const facts = blockFacts(frame, view.tier, view.cell);
    return { line: blockLine(frame, view.tier, view.cell, words).replaceAll("\\u00a0", " "),
      first: facts.first, last: facts.last,
      owners: ownersOf(frame, facts, view).map((x) => x.request.request_id) }; });"""


def frame_and_views(runner: Runner, tier: str = "G1") -> tuple[bytes, list[dict[str, Any]]]:
    frame = runner.engine.frame(1, state="running")
    _, cells, _ = decode_frame(frame)
    used = np.flatnonzero(cells[("G1", "G2", "G3").index(tier)]["state"] & 7)
    views = [runner.engine.inspect(tier, int(cell)) for cell in used]
    return frame, msgspec.to_builtins(views)


def test_lines_tell_the_positions_that_evictions_left(tmp_path: Path) -> None:
    window = {"retention.sink_tokens": 4, "retention.window_tokens": 12,
              "retention.budget_tokens": 16}  # fmt: skip
    runner = Runner(build({"retention.policy": "sink+window"} | window))
    runner.add(tokens(48), 24)
    runner.step(6)
    frame, views = frame_and_views(runner)
    owned = [view for view in views if view["state"] == "owned"]
    told = run_node(tmp_path, LINES, frame, views=owned)
    assert any(view["first_token"] > 4 * view["page_index"] + 20 for view in owned)
    for view, said in zip(owned, told, strict=True):
        assert [said["first"], said["last"]] == [view["first_token"], view["last_token"]]
        assert f"tokens {view['first_token']}–{view['last_token']}" in said["line"]


def test_every_cell_of_every_group_names_its_owners(tmp_path: Path) -> None:
    runner = Runner(build({"cache.grouping": "halves"}))
    for seed in (2, 3):
        runner.add(tokens(16, 1) + tokens(6, seed), 12)
        runner.step(3)
    frame, views = frame_and_views(runner)
    owned = [view for view in views if view["state"] == "owned"]
    told = run_node(tmp_path, LINES, frame, views=owned)
    assert {len(view["owners"]) for view in owned} == {1, 2}
    for view, said in zip(owned, told, strict=True):
        assert sorted(said["owners"]) == sorted(view["owners"])
        assert "request" in said["line"] or "shared by" in said["line"]


def test_a_swapped_page_names_its_request_in_words(tmp_path: Path) -> None:
    changes = {"cache.hbm_budget_mib": pages(32), "scheduling.preemption": "swap",
               "tiers.dram_mib": 1.0}  # fmt: skip
    runner = Runner(build(changes))
    for seed in range(3):
        runner.add(tokens(40, seed), 40, label=f"chat {seed}")
    runner.until(lambda: any(len(row[0]) != 32 if isinstance(row[0], bytes) else True
                             for row in runner.engine.hierarchy.entries("G2")))  # fmt: skip
    frame, views = frame_and_views(runner, "G2")
    private = [view for view in views if view["why"] == "private"]
    told = run_node(tmp_path, LINES, frame, views=private)
    for view, said in zip(private, told, strict=True):
        assert said["owners"] == view["owners"] and "request chat" in said["line"]
        assert "KiB" not in said["line"] and "fp32" in said["line"], "of one group, not of the row"


def test_a_tier_that_fails_says_so_in_one_line(tmp_path: Path) -> None:
    disk = {"cache.hbm_budget_mib": pages(32), "tiers.disk_mib": 1.0,
            "tiers.disk_path": str(tmp_path / "disk")}  # fmt: skip
    (tmp_path / "disk").mkdir()
    runner = Runner(build(disk))
    disk = runner.engine.hierarchy.mover.ladder.tiers[0].medium
    with open("/dev/full", "r+b", buffering=0) as full:
        os.dup2(full.fileno(), disk._file)  # every write fails as on a full disk
    for seed in range(4):
        runner.one(tokens(80, seed), 4)
        runner.engine.hierarchy.wait_io()
    frame = runner.engine.frame(1, state="running")
    note = run_node(tmp_path, """const { Sentence } = await use("sentence");
      return Sentence.prototype.noteOf.call({ words }, frame.snap);""", frame)  # fmt: skip
    times = decode_frame(frame)[0].tiers[2].num_failed
    assert note == (f"G3 fails: the disk is full, {times} times in a row. Its blocks are "
                    "computed again; choose another place for it, or turn it off.")  # fmt: skip


def test_occupancy_is_told_in_bytes(tmp_path: Path) -> None:
    figures = run_node(tmp_path, """const { occupancy } = await use("tiers");
      const values = occupancy(frame.snap.tiers[0]);
      return ["", ".short", ".spoken"].map((kind) => words(`tier.figures${kind}`, values));""",
      frame_of(Plan(tick=3)))  # fmt: skip
    assert [text.replace("\u00a0", " ") for text in figures] == [
        "38.1 used, 11.4 cached, 14.3 free of 64 MiB",
        "38.1 used, 11.4 cached, 14.3 MiB free",
        "38.1 MiB used (60 %), 11.4 MiB cached (18 %), 14.3 MiB free of 64 MiB",
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"evict_rank": 41, "num_evictable": 96, "why": "cached", "state": "cached"},
         "41 of 96: kept for later hits, read 2 steps ago"),
        ({"evict_rank": 0, "why": "shared", "state": "owned"},
         "not evictable: several requests use it, read 2 steps ago"),
        ({"evict_rank": 0, "why": "free", "state": "free"}, "not evictable: nothing stored"),
    ],
)  # fmt: skip
def test_the_eviction_order_says_why(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    script = """const { Inspector } = await use("inspector");
      return Inspector.prototype.rank.call({ words }, values.block, 2);"""
    said = run_node(tmp_path, script, block=change)
    assert said == told


def test_formats_of_a_lower_tier_are_those_of_its_entries(tmp_path: Path) -> None:
    snapshot, cells, tables = decode_frame(frame_of(Plan(tick=3, tiers=2)))
    grid = [snapshot.grid[0],
            msgspec.structs.replace(snapshot.grid[1], slabs=[[1, 96]],
                                    cell_classes=[[0, 10], [-1, 1], [1, 85]])]  # fmt: skip
    frame = encode_frame(msgspec.structs.replace(snapshot, grid=grid), cells, tables)
    said = run_node(tmp_path, """const { blockLine } = await use("describe");
      const { formatPlane } = await use("squares");
      return [[0, 9, 10, 11].map((cell) => blockLine(frame, "G2", cell, words)),
        Array.from(formatPlane(frame.tiers.get("G2")).slice(8, 13))];""", frame)  # fmt: skip
    state = "cached, may be evicted"
    assert said[0] == [f"G2 block 0: {state} · bf16", f"G2 block 9: {state} · bf16",
                       f"G2 block 10: {state}", f"G2 block 11: {state} · int8"]  # fmt: skip
    assert said[1] == [0, 0, 0, 1, 1]
