"""Figures of `workbench bench tiers` that are not available say so, with a reason."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from workbench.cli import build_app
from workbench.lab.host_copy_bench import PAGE_BYTES, LoadPath
from workbench.lab.overlap_bench import Times, overlap_figure
from workbench.lab.trace_replay import measure_trace, without_trace
from workbench.spatial.hierarchy.faults import inject


@pytest.mark.parametrize(
    ("times", "ratio", "value"),
    [
        (Times(compute_s=4.0, serial_s=7.0, layered_s=4.0), "1.33", 1.0),
        (Times(compute_s=4.0, serial_s=6.0, layered_s=5.0), "2.00", 0.5),
        (Times(compute_s=2.0, serial_s=6.0, layered_s=4.0), "0.50", 1.0),
        (Times(compute_s=4.1, serial_s=6.1, layered_s=4.2), "2.05", None),
        (Times(compute_s=2.0, serial_s=6.1, layered_s=4.2), "0.49", None),
        (Times(compute_s=4.0, serial_s=4.0, layered_s=4.0), "inf", None),
        (Times(compute_s=4.0, serial_s=3.9, layered_s=4.0), "inf", None),
    ],
)
def test_overlap_has_a_value_where_compute_and_transfer_are_alike(
    times: Times, ratio: str, value: float | None
) -> None:
    figure = overlap_figure("disk", times, "measured", "sizes")
    assert figure.value == (None if value is None else pytest.approx(value))
    assert figure.note.startswith(f"compute / transfer {ratio}")
    assert ("asked 0.5 to 2: not measured" in figure.note) == (value is None)
    assert math.isfinite(times.ratio) == (ratio != "inf")


@pytest.mark.parametrize("quick", [False, True])
def test_without_a_trace_its_figures_are_there_without_values(quick: bool, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    row = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2, 1]}
    path.write_text(json.dumps(row))
    given = [figure.name for figure in measure_trace(lambda text: None, path, quick=quick)]
    found = without_trace(quick=quick)
    assert sorted(figure.name for figure in found) == sorted(given)
    assert all(figure.value is None and "give --trace FILE" in figure.note for figure in found)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_command_prints_them() -> None:
    done = CliRunner().invoke(build_app(), ["bench", "tiers", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    figures = {each["name"]: each for each in json.loads(done.stdout)["figures"]}
    assert figures["trace_oracle_error"]["value"] is None
    assert "compute / transfer" in figures["overlap_efficiency_disk"]["note"]


def test_the_measured_load_path_moves_and_verifies_real_pages() -> None:
    rng = np.random.default_rng(0)
    pages = [rng.integers(0, 256, PAGE_BYTES, dtype=np.uint8) for _ in range(3)]
    path = LoadPath(pages)
    path.load()
    assert (path.arena.reshape(3, PAGE_BYTES) == np.stack(pages)).all()
    inject(path._hierarchy, "corrupt_dram", rng)
    with pytest.raises(RuntimeError, match="page . was not loaded"):
        path.load()
    path.close()
