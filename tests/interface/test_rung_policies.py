"""Each rung of the ladder names its policies, as the engine has them now."""

from pathlib import Path

from tests.engine.harness import Runner, build, pages
from workbench.snapshot import decode_frame

from .component_node import run_node

LINES = """const { policyLine } = await use("ladder");
  const told = (tier) => [tier.name, policyLine(tier, words)];
  return Object.fromEntries(frame.snap.tiers.map(told));"""


def lines(runner: Runner, tmp_path: Path) -> dict[str, str]:
    frame = runner.engine.frame(1, state="running")
    assert all(isinstance(tier.policies, dict) for tier in decode_frame(frame)[0].tiers)
    told: dict[str, str] = run_node(tmp_path, LINES, frame)
    return told


def test_each_rung_names_its_policies(tmp_path: Path) -> None:
    runner = Runner(build({
        "cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 1.0, "tiers.disk_mib": 1.0,
        "tiers.object_url": str(tmp_path), "tiers.disk_codec": "cachegen",
    }))  # fmt: skip
    assert lines(runner, tmp_path) == {
        "G1": "LRU",
        "G2": "LRU, written at eviction",
        "G3": "LRU, written at eviction, takes all, CacheGen",
        "G4": "LRU, written at eviction, takes all, CacheGen",
    }
    runner.engine.apply({
        "cache.eviction": "arc", "tiers.policy": "cost", "tiers.write": "through",
        "tiers.admission": "tinylfu", "tiers.disk_codec": "planes+zstd", "tiers.dram_mib": 0.0,
    })  # fmt: skip
    assert lines(runner, tmp_path) == {
        "G1": "ARC",
        "G2": "",
        "G3": "by cost, written at once, takes by TinyLFU, planes + zstd",
        "G4": "by cost, written at once, takes by TinyLFU, planes + zstd",
    }
    runner.engine.close()
