"""The page Quality in a real browser, on the real model where it is there: sweep, click, cancel."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from tests.interface.dashboard import Dashboard, Tab, wait_for
from workbench.model.fetch import cached_path

pytestmark = pytest.mark.browser
# Settings cheap enough for a test; TOML, so that both kinds of file are read somewhere.
SETTINGS = b"""
[[setting]]
name = "eight"
cache.k_format = "int8"
cache.v_format = "int8"
[[setting]]
name = "two"
cache.k_format = "int2"
cache.v_format = "int2"
[[setting]]
name = "wrong"
cache.k_format = "int7"
"""
POINTS = """(() => {
  const plot = document.querySelector('.st-key-quality_plot_side .js-plotly-plot');
  if (!plot || !plot._fullLayout) return {};
  const box = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout, found = {};
  for (const trace of plot._fullData) (trace.customdata || []).forEach((data, i) => {
    found[data[0]] = [box.x + xaxis._offset + xaxis.d2p(trace.x[i]),
      box.y + yaxis._offset + yaxis.d2p(trace.y[i])];
  });
  return found;
})()"""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    layers = "0" if cached_path() is not None else "2"
    running = Dashboard(tmp_path_factory.mktemp("cache"), layers, cached_path())
    yield running
    running.close()


@pytest.fixture(scope="module")
def tab(context: BrowserContext, dashboard: Dashboard) -> Iterator[Tab]:
    opened = Tab(context, dashboard.url)
    opened.drive()
    opened.page.get_by_label("Pause").click()  # leaves the processor to the job
    opened.wait_snapshot("s.state === 'paused'")
    opened.page.get_by_role("link", name="Quality").click()
    opened.key("quality_measure").locator("visible=true").first.wait_for()
    yield opened
    opened.close()


def points(tab: Tab) -> Any:
    """Where each setting's point is on the screen."""
    return tab.page.evaluate(POINTS)


def test_a_file_is_swept_a_point_clicked_and_applied(tab: Tab) -> None:
    assert tab.page.url.split("?")[0].endswith("/quality")
    tab.press("sweep_none")
    tab.page.get_by_text("settings from a file").first.click()
    file = {"name": "some.toml", "mimeType": "application/toml", "buffer": SETTINGS}
    tab.page.locator('input[type="file"][accept*=".toml"]').set_input_files(file)  # type: ignore[arg-type]
    tab.page.get_by_text("2 of 3 settings can be measured").wait_for()
    tab.page.get_by_text("cache.k_format = 'int7' is not allowed").wait_for()
    tab.press("quality_sweep")
    tab.page.get_by_text("Measured 2 of 2 settings").wait_for()
    wait_for(lambda: set(points(tab)) == {"eight", "two"}, 20, lambda: str(points(tab)))
    tab.settled()
    tab.page.locator(".st-key-quality_plot_side .js-plotly-plot").scroll_into_view_if_needed()
    tab.page.mouse.click(*points(tab)["eight"])
    tab.page.get_by_text("Would change: K format int8, V format int8").wait_for()
    tab.press("quality_apply")
    tab.page.get_by_text("blocks re-encoded").wait_for()
    tab.page.get_by_text("The engine runs this setting").wait_for()
    tab.page.wait_for_function("location.search.includes('cache.k_format=int8')")
    tab.page.get_by_label("Undo").click()
    tab.page.get_by_text("Undone: K format bf16").wait_for()
    tab.page.wait_for_function("!location.search.includes('cache.k_format')")


def test_a_reload_keeps_the_points_and_a_job_is_cancelled(tab: Tab) -> None:
    tab.press("quality_measure")
    tab.key("quality_cancel").locator("visible=true").first.wait_for()
    tab.page.reload()
    tab.key("quality_cancel").locator("visible=true").first.wait_for()
    wait_for(lambda: {"eight", "two"} <= set(points(tab)), 30, lambda: str(points(tab)))
    tab.press("quality_cancel")
    tab.page.get_by_text("Cancelled after").wait_for()


def test_a_killed_job_is_told(tab: Tab, dashboard: Dashboard) -> None:
    tab.press("quality_measure")
    tab.key("quality_cancel").locator("visible=true").first.wait_for()
    os.kill(dashboard.child_pid(b"workbench.quality.job"), signal.SIGKILL)
    tab.page.get_by_text("The measurement failed: its process ended by signal 9").wait_for()


def test_a_phone_scrolls_down_only(tab: Tab) -> None:
    with tab.sized(390, 844):
        plot = tab.page.locator(".st-key-quality_plot_side .js-plotly-plot")
        wait_for(lambda: plot.bounding_box()["width"] <= 390, 20, lambda: str(plot.bounding_box()))
        tab.page.wait_for_function("document.documentElement.scrollWidth <= 390")


def test_the_page_leads_back_without_a_new_session(tab: Tab, dashboard: Dashboard) -> None:
    tab.page.get_by_role("link", name="Live").click()
    tab.key("quick_int8").locator("visible=true").first.wait_for()
    tab.page.wait_for_function("window.__kvw && window.__kvw.frames > 0")
    maps = Path(f"/proc/{dashboard.process.pid}/maps").read_text()
    assert "libtorch" not in maps
