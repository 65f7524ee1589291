"""A lossy codec on the way to disk taints the lineage: exact requests never get its bytes."""

from typing import Any

import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache.keys import coded_lineage
from workbench.errors import SettingError

CODED = {"tiers.disk_mib": 4.0, "tiers.disk_codec": "cachegen"}


def runner_with(**more: Any) -> Runner:
    return Runner(build({"cache.hbm_budget_mib": pages(32)} | CODED | more))


def lineages(runner: Runner) -> set[str]:
    return {row.lineage for row in runner.engine.stack.pool.index.rows()}


def tier(runner: Runner, name: str = "G3") -> Any:
    return next(s for s in runner.engine.hierarchy.stats().tiers if s.name == name)


@pytest.mark.parametrize("dram", [0.0, 0.03])
@pytest.mark.parametrize("grouping", ["model", "head"])
def test_coded_pages_come_back_under_a_lineage_that_says_so(dram: float, grouping: str) -> None:
    runner = runner_with(**{"tiers.dram_mib": dram, "cache.grouping": grouping})
    prompts = [tokens(90, seed) for seed in range(4)]
    for prompt in prompts * 2:
        runner.one(prompt, 6)
    stats = tier(runner)
    assert stats.num_loads > 0 and not stats.faults
    pure = f"fp32@{grouping}"
    assert f"cachegen<{pure}" in lineages(runner) <= {pure, f"cachegen<{pure}"}
    runner.engine.hierarchy.wait_io()
    runner.engine.hierarchy.check_integrity(strict=True)
    assert runner.engine.hierarchy.codec_bytes > 0
    runner.engine.close()


def test_an_exact_request_never_gets_coded_bytes() -> None:
    """The same tokens as without tiers at all, whatever the disk holds."""
    plain = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    runner = runner_with(**{"cache.reuse": "exact"})
    for prompt in [tokens(40, seed) for seed in range(4)] * 2:
        assert runner.one(prompt, 6) == plain.one(prompt, 6)
    assert lineages(runner) == {"fp32@model"} and tier(runner).num_loads == 0
    assert tier(runner).num_stores > 0, "it was all there to be found"
    runner.engine.apply({"cache.reuse": "recoded"})
    runner.one(tokens(40, 0), 6)
    assert tier(runner).num_loads > 0
    runner.engine.close()


def test_dram_gives_exact_bytes_back_beside_a_lossy_disk() -> None:
    runner = runner_with(**{"tiers.dram_mib": 1.0, "cache.reuse": "exact"})
    prompts = [tokens(40, seed) for seed in range(5)]
    first = [runner.one(prompt, 6) for prompt in prompts]
    assert [runner.one(prompt, 6) for prompt in prompts] == first
    assert tier(runner, "G2").num_loads > 0 and tier(runner).num_loads == 0
    runner.engine.close()


def test_what_a_request_swapped_out_stays_as_it_is() -> None:
    swap = {"scheduling.preemption": "swap", "cache.reuse": "exact"}
    plain = Runner(build({"cache.hbm_budget_mib": pages(64)}))
    runner = runner_with(**swap)
    expected = plain.one(tokens(30), 30)
    request_id = runner.add(tokens(30), 30)
    runner.step(8)
    runner.engine.scheduler.preempt(runner.engine.requests[request_id], "test")
    assert runner.engine.fetcher.is_swapped(runner.engine.requests[request_id])
    runner.drain()
    assert runner.outputs[request_id] == expected
    runner.engine.close()


def test_it_is_switched_live_and_older_files_stay_readable() -> None:
    runner = runner_with(**{"tiers.disk_codec": "planes+zstd", "cache.reuse": "exact"})
    first = [runner.one(tokens(90, seed), 6) for seed in range(3)]
    assert runner.engine.apply(CODED).kinds == {"tiers.disk_codec": "hot"}
    for seed in range(3, 5):
        runner.one(tokens(90, seed), 6)
    assert runner.one(tokens(90, 0), 6) == first[0]
    assert tier(runner).num_loads > 0, "pages that were coded without a loss"
    runner.engine.apply({"tiers.disk_codec": "none", "cache.reuse": "recoded"})
    runner.one(tokens(90, 4), 6)
    assert not tier(runner).faults
    runner.engine.close()


@pytest.mark.parametrize("changes", [
    {"cache.k_format": "int8"}, {"cache.v_format": "kivi4"},
    {"cache.layer_plan": "0=int4/int4", "cache.grouping": "layer"},
])  # fmt: skip
def test_pages_of_codes_are_refused_in_a_sentence(changes: dict[str, Any]) -> None:
    runner = runner_with()
    config = runner.engine.config
    with pytest.raises(SettingError) as error:
        runner.engine.apply(changes)
    assert str(error.value).startswith("tiers.disk_codec = cachegen takes pages of bf16 and fp32")
    assert "\n" not in str(error.value) and runner.engine.config is config
    runner.engine.close()


def test_a_tag_says_that_a_codec_lies_on_the_way_not_how_often() -> None:
    once = coded_lineage("int8<fp32", "cachegen")
    assert once == "cachegen<int8<fp32" == coded_lineage(once, "cachegen")
