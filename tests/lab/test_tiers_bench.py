"""`workbench bench tiers` at tiny sizes: every figure is there, and misses are called so."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import RequestError, TierError
from workbench.lab import disk_tier_bench
from workbench.lab.disk_tier_bench import QUICK, DiskPlan, measure_disk, succeed
from workbench.lab.host_copy_bench import in_turns, measure_copies, verdict
from workbench.spatial.hierarchy.disk_file import DiskFile


def test_all_figures_at_tiny_sizes() -> None:
    told: list[str] = []
    both = [*measure_copies(told.append, quick=True), *measure_disk(told.append, QUICK)]
    figures = {figure.name: figure for figure in both}
    assert {
        "host_memcpy_mb_s", "host_copy_share", "host_copy_share_verified",
        "host_copy_share_stored", "disk_read_share",
        "disk_write_share", "disk_write_ios_per_page", "disk_ring_gain_block_first",
        "disk_ring_gain_layer_first", "disk_read_block_first_mb_s",
        "disk_read_layer_first_one_call_mb_s", "disk_read_layer_first_by_layer_mb_s",
    } <= set(figures)  # fmt: skip
    assert figures["disk_ios_per_page_block_first"].value == 1
    assert figures["disk_ios_per_page_layer_first"].value == 30
    assert figures["disk_ios_per_layer_block_first"].value == 4
    assert figures["disk_ios_per_layer_layer_first"].value == 1
    assert all(figure.value and figure.value > 0 for figure in figures.values())
    assert len(told) == 4


def test_both_files_of_a_layout_lie_on_the_disk_that_was_named(tmp_path: Path) -> None:
    places: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_tier_bench, "_opened", noting(places))
        measure_disk(lambda text: None, dataclasses.replace(QUICK, path=str(tmp_path)))
    assert len(places) == 5 and all(place.startswith(str(tmp_path)) for place in places)
    assert len(set(places)) == 3, "a tier's folder takes one file"
    assert [*tmp_path.rglob("*.kv")] == []


def noting(places: list[str]) -> Callable[..., Any]:
    opened = disk_tier_bench._opened

    @contextmanager
    def note(*args: Any) -> Iterator[DiskFile]:
        with opened(*args) as disk:
            places.append(disk.place)
            yield disk

    return note


def test_a_miss_is_called_a_miss() -> None:
    assert verdict(0.79, 0.8) == "asked at least 0.8: MISSED"
    assert verdict(0.8, 0.8) == "asked at least 0.8: met"


def test_who_goes_first_changes() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}  # type: ignore[misc]
    seconds = in_turns(runs, 2)
    assert "".join(order) == "abc" + "abc" + "bca"
    assert [len(each) for each in seconds.values()] == [2, 2, 2]


def test_sizes_and_places_that_cannot_be() -> None:
    for size in (0, 15, 10**6):
        with pytest.raises(RequestError, match=f"--file-mib {size}: give 16 to 65536"):
            DiskPlan(file_mib=size)
    with pytest.raises(TierError, match="the disk tier cannot write to"):
        measure_disk(lambda text: None, DiskPlan(file_mib=16, path="/proc/none"))
    succeed([])
