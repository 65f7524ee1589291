"""`workbench bench tiers` in small: write policies and layouts in one table, costs, other media."""

import pytest

from workbench.lab import media_bench, object_split_bench, write_policy_bench
from workbench.lab.cost_model_bench import measure_cost_model
from workbench.lab.figures import report
from workbench.lab.media_bench import measure_media
from workbench.lab.object_split_bench import measure_split
from workbench.lab.write_policy_bench import measure_writes
from workbench.settings.tiers import DISK_LAYOUTS, WRITES


def quiet(text: str) -> None:
    """Nobody reads the progress."""


def test_every_tier_has_a_cost_both_ways() -> None:
    figures = {figure.name: figure.value for figure in measure_cost_model(quiet)}
    assert figures["cost_model_s"]
    for tier in ("g2", "g3", "g35", "g4"):
        for way in ("up", "down"):
            assert figures[f"cost_{tier}_{way}_mb_s"]
            assert figures[f"cost_{tier}_{way}_latency_us"] is not None


def test_every_medium_has_its_rates() -> None:
    figures = measure_media(quiet, media_bench.QUICK)
    assert len(report(figures).figures) == 12
    assert all(figure.value for figure in figures)
    assert all("no figure of a bucket" in f.note for f in figures if f.name.startswith("media_s3"))


@pytest.mark.long
def test_requests_that_share_a_link_fetch_the_same_by_any_split() -> None:
    figures = measure_split(quiet, object_split_bench.QUICK)
    assert [figure.name for figure in figures] == [
        "object_added_ttft_ms_order", "object_added_ttft_ms_equal", "object_added_ttft_ms_slack",
        "object_split_ratio_modelled", "object_split_ratio",
    ]  # fmt: skip
    assert figures[0].note.endswith("tokens fetched 512")


@pytest.mark.long
def test_earlier_writes_write_more_at_equal_hits() -> None:
    figures = {f.name: f.value for f in measure_writes(quiet, write_policy_bench.QUICK)}
    assert figures["write_equal_hits"] == 1
    for layout in DISK_LAYOUTS:
        back, through, selective = (
            figures[f"write_{write}_{layout}_written_mib"]
            for write in ("back", "through", "selective")
        )
        assert back is not None and through is not None and selective is not None
        assert 0 < back <= selective <= through
        for write in WRITES:
            assert figures[f"write_{write}_{layout}_ios"]
            assert figures[f"write_{write}_{layout}_read_mib"]
            assert figures[f"write_{write}_{layout}_stall_ms"]
