"""`bench ui` on the real server and browser with a small random model and few blocks."""

from pathlib import Path

import pytest

from workbench.lab import ui_bench, ui_page
from workbench.lab.figures import report, to_json
from workbench.lab.ui_bench import NAMES, UiPlan

SMALL = UiPlan(
    min_blocks=200, budget_mib=24.0, num_seqs=2, prompt_tokens=16, max_tokens=4000, watch_s=1.0,
    knob_moves=2, num_reads=1, num_snapshots=5, window_s=1.0, num_cycles=1, random_layers=24,
)  # fmt: skip


@pytest.mark.browser
def test_every_figure_on_a_small_grid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path))
    told: list[str] = []
    figures = {figure.name: figure for figure in ui_bench.measure(told.append, plan=SMALL)}
    assert to_json(report(list(figures.values())))
    assert set(figures) == set(NAMES)
    assert all(figure.value is not None for figure in figures.values())
    for name in ("ui_cells_differing", "ui_nodes_replaced", "ui_layout_shift"):
        assert figures[name].value == 0, figures[name].note
    assert figures["start_to_serving_s"].value > 0  # type: ignore[operator]
    assert "first live frame" in figures["start_to_serving_s"].note
    assert figures["ui_frames_per_s"].value > 0  # type: ignore[operator]
    assert any("viewers" in text for text in told)


def test_without_a_browser_each_figure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    assert ui_page.find_chromium() is None
    figures = ui_bench.measure(lambda text: None)
    assert [figure.name for figure in figures] == list(NAMES)
    assert {figure.provenance for figure in figures} == {"refused"}
    assert figures[0].note.startswith("no Chromium: sudo apt install chromium")
