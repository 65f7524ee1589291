"""`workbench bench tiers` in small: hits after a restart, faults, and a trace with known rates."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from workbench.cache import row_slices
from workbench.errors import RequestError
from workbench.lab import fault_run, overlap_bench, prestage_bench, restart_bench
from workbench.lab.fault_run import content, measure_faults
from workbench.lab.figures import Figure
from workbench.lab.overlap_bench import Times, measure_overlap
from workbench.lab.prestage_bench import measure_prestage
from workbench.lab.restart_bench import measure_restart
from workbench.lab.trace_replay import measure_trace, tails_first, touched_in_order


def quiet(text: str) -> None:
    """Nobody reads the progress."""


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


@pytest.mark.timeout(180)
def test_a_new_process_finds_what_another_one_stored() -> None:
    found = by_name(measure_restart(quiet, restart_bench.QUICK))
    for tier in ("g3", "g35", "g4"):
        assert found[f"restart_hit_share_{tier}"].value == 1
        assert found[f"restart_logits_equal_{tier}"].value == 1
        ratio = found[f"{tier}_ttft_ratio_gate_off"].value
        assert ratio is not None and ratio > 0


@pytest.mark.long  # a store that failed is left alone for seconds, four times
@pytest.mark.timeout(180)
def test_nothing_wrong_is_read_and_nothing_lost_under_faults(tmp_path: Path) -> None:
    found = by_name(measure_faults(quiet, tmp_path, fault_run.QUICK))
    assert found["fault_wrong_bytes"].value == 0
    assert found["fault_lost_requests"].value == 0
    assert found["fault_uncounted"].value == 0
    assert found["fault_lost_loads"].value == 0 and found["fault_wrong_tokens"].value == 0
    assert found["fault_kinds_unmet"].value == 0, found["fault_kinds_unmet"].note
    told = found["fault_wrong_bytes"].note
    for name in ("a killed store", "refused connections", "a silent port", "(ENOSPC)"):
        assert name in told
    assert re.match(r"of \d\d+ requests to an engine", found["fault_lost_requests"].note)


def test_prestaging_spares_waiting_for_pages() -> None:
    (figure,) = measure_prestage(quiet, prestage_bench.QUICK)
    assert figure.provenance == "throttled" and figure.value is not None and 0 < figure.value < 1


def test_overlap_is_measured_on_the_disk_and_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_slices, "LEAST_SLICE_BYTES", 1)  # the small model's rows have slices
    found = by_name(measure_overlap(quiet, overlap_bench.QUICK))
    disk, slowed = found["overlap_efficiency_disk"], found["overlap_efficiency_throttled"]
    assert (disk.provenance, slowed.provenance) == ("measured", "throttled")
    assert "by 4 slices" in disk.note and "MB/s" in slowed.note


def test_efficiency_is_the_share_of_what_could_be_hidden() -> None:
    assert Times(compute_s=4.0, serial_s=7.0, layered_s=4.0).efficiency == 1.0
    assert Times(compute_s=4.0, serial_s=7.0, layered_s=7.0).efficiency == 0.0
    assert Times(compute_s=2.0, serial_s=5.0, layered_s=4.0).efficiency == 0.5


def test_pages_of_different_keys_share_no_word() -> None:
    first, second = content(1, 4096), content(2, 4096)
    assert not np.isin(first.view(np.uint64), second.view(np.uint64)).any()


def naive_lru(requests: list[list[int]], capacity: int) -> float:
    order: list[int] = []
    hits = total = 0
    for block in (block for request in requests for block in request):
        total += 1
        if block in order:
            hits += 1
            order.remove(block)
        elif len(order) == capacity:
            order.pop(0)
        order.append(block)
    return hits / total


def test_the_pool_in_the_traces_order_is_an_lru_list() -> None:
    rng = np.random.default_rng(3)
    requests = [rng.zipf(1.4, size=rng.integers(1, 9)).clip(max=60).tolist() for _ in range(300)]
    for capacity in (1, 4, 16, 64):
        assert touched_in_order(requests, capacity) == naive_lru(requests, capacity)
    assert 0 < tails_first(requests, 16) <= 1


def test_a_trace_without_published_rates_says_so(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"timestamp": t, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2 + t]}
            for t in range(8)]  # fmt: skip
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found = by_name(measure_trace(quiet, path))
    assert found["trace_oracle_error"].value is None
    assert "no hit rates are published for own" in found["trace_oracle_error"].note
    assert found["trace_hit_rate_1000"].value == found["trace_hit_rate_infinite"].value == 7 / 16
    with pytest.raises(RequestError, match="cannot be read"):
        measure_trace(quiet, tmp_path / "none.jsonl")
