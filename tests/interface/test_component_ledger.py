"""The memory ledger in words: each line has a name, and claims stand against the process's RSS."""

from pathlib import Path
from typing import Any

import msgspec

from app.components.live_view.bundle import default_text
from tests.engine.harness import Runner, build, tokens
from workbench.snapshot import decode_frame, encode_frame
from workbench.views import LedgerLine

from .component_frames import Plan, frame_of
from .component_node import run_node

ROWS = """const { ledgerRows } = await use("ledger");
  const { rows, ...rest } = ledgerRows(frame.snap, words);
  const plain = (r) => [r.name, r.text.replace("\\u00a0", " "), r.detail ?? ""];
  return { ...rest, rows: rows.map(plain) };"""
MIB = 2**20


def told(folder: Path, lines: list[LedgerLine], rss_mib: float) -> dict[str, Any]:
    snapshot, cells, tables = decode_frame(frame_of(Plan()))
    changed = msgspec.structs.replace(snapshot, ledger=lines, rss_bytes=int(rss_mib * MIB))
    found: dict[str, Any] = run_node(folder, ROWS, encode_frame(changed, cells, tables))
    return found


def line(name: str, size_mib: float, place: Any = "process", detail: str = "") -> LedgerLine:
    return LedgerLine(name=name, num_bytes=int(size_mib * MIB), place=place, detail=detail)


LINES = [
    line("weights", 256), line("kv:bf16", 40), line("metadata", 1, detail="scales of int8"),
    line("kv:int8", 20), line("metadata", 2, detail="scales of int4"),
    line("reserved:arena", 3600, "reserved"), line("reserved:scratch", 4, "reserved"),
]  # fmt: skip


def test_claims_stand_beside_the_rss_and_the_rest_is_named(tmp_path: Path) -> None:
    shown = told(tmp_path, LINES, 812)
    assert shown["rows"] == [
        ["Weights", "256 MiB", ""],
        ["KV bf16", "40 MiB", ""],
        ["Metadata", "3 MiB", "scales of int8; scales of int4"],
        ["KV int8", "20 MiB", ""],
        ["Claimed", "319 MiB", ""],
        ["Process (RSS)", "812 MiB", ""],
        ["Not claimed", "493 MiB", ""],
        ["Reserved, not yet written", "3.52 GiB", "G1 3.52\u00a0GiB, Scratch 4\u00a0MiB"],
    ]
    assert not shown["over"] and "Python, PyTorch" in shown["difference"]


def test_a_claim_beyond_the_rss_is_told_and_not_hidden(tmp_path: Path) -> None:
    shown = told(tmp_path, LINES, 300)
    assert ["Claimed, not resident", "19 MiB", ""] in shown["rows"]
    assert shown["over"] and "swapped out" in shown["difference"]


def test_what_lies_on_a_gpu_is_no_part_of_the_rss(tmp_path: Path) -> None:
    lines = [line("weights", 256, "device"), line("kv:bf16", 64, "device"), line("dram_tier", 32)]
    rows = {name: text for name, text, _ in told(tmp_path, lines, 2048)["rows"]}
    assert rows["Weights, GPU"] == "256 MiB" and rows["Claimed on the GPU"] == "320 MiB"
    assert (rows["Claimed"], rows["Not claimed"]) == ("32 MiB", "1.97 GiB")


def test_every_line_and_number_of_a_real_engine_has_a_name() -> None:
    """Nothing is shown by the name it has in the code."""
    runner = Runner(build({"tiers.dram_mib": 1.0, "cache.values": "hbm", "cache.k_format": "int8"}))
    runner.add(tokens(40), 8)
    runner.step(3)
    shown, text = runner.engine.snapshot(), default_text()
    heads = {each.name.removeprefix("reserved:").split(":")[0] for each in shown.ledger}
    heads |= {"staging", "arena", "shadow"}
    assert {head for head in heads if f"ledger.{head}" not in text} == set()
    numbers = {**shown.numbers, **shown.hardware}
    assert {name for name in numbers if f"number.{name}" not in text} == set()
