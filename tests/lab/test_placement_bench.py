"""What `workbench bench tiers` tells of placement and of pages left out, at tiny sizes."""

import dataclasses

from workbench.lab import placement_bench
from workbench.lab.placement_bench import measure_placement
from workbench.lab.retrieval_bench import QUICK, measure_retrieval


def quiet(text: str) -> None:
    """Nobody reads the progress."""


def test_leaving_out_costs_quality_and_spares_bytes() -> None:
    plan = dataclasses.replace(QUICK, shares=(1.0, 0.6), late_share=0.6)
    found = {figure.name: figure for figure in measure_retrieval(quiet, plan)}
    assert found["retrieval_skip_100_kl"].value == 0, "nothing left out: equal bit for bit"
    assert found["retrieval_skip_100_read_share"].value == 1
    assert (found["retrieval_skip_60_kl"].value or 0) > 0
    assert (found["retrieval_skip_60_read_share"].value or 1) < 0.9
    assert found["retrieval_late_60_read_share"].value == 1, "they came all the same"
    assert "256 tokens lay on disk" in found["retrieval_skip_60_kl"].note
    assert "0 of them written later" in found["retrieval_skip_60_kl"].note
    assert (found["retrieval_skip_60_wait_ratio"].value or 1) < 0.95
    ratio = found["retrieval_skip_60_ttft_ratio"]
    assert ratio.provenance == "throttled" and ratio.value and ratio.value > 0


def test_each_policy_keeps_up_what_it_is_for() -> None:
    found = {each.name: each.value or 0 for each in measure_placement(quiet, placement_bench.QUICK)}
    assert found["placement_dram_share_cost"] > found["placement_dram_share_lru"] > 0.1
    assert found["placement_dram_mass_importance"] > found["placement_dram_mass_lru"]
    assert all(found[f"placement_disk_written_{name}"] > 0 for name in ("lru", "cost"))
