"""The dashboard in a real Chromium, as `workbench bench ui` drives and observes it."""

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WAIT_MS = 60_000
KNOB = "scheduling.token_budget"  # hot, and without effect while requests only decode

_WATCH_SHIFTS = """
window.__shifts = [];
const place = ({ x, y, width, height }) => [x, y, width, height].map(Math.round).join(" ");
new PerformanceObserver((list) => {
  for (const e of list.getEntries()) {
    const moved = (e.sources ?? []).map(({ node, previousRect: a, currentRect: b }) =>
      `${node?.className || node?.nodeName || "part"} ${place(a)} to ${place(b)}`);
    window.__shifts.push({ at: e.startTime, value: e.value, input: e.hadRecentInput, moved });
  }
}).observe({ type: "layout-shift", buffered: true });
"""
_SHIFTS = "(since) => window.__shifts.filter(({ at, input }) => at >= since && !input)"
# Every canvas, part, knob and button there is now; each display frame asks whether it still is.
_TRACK = """() => {
  const nodes = [];
  const walk = (root) => {
    for (const node of root.querySelectorAll("*")) {
      if (node.matches("canvas, .kvw, button, input, [class*='st-key-']")) nodes.push(node);
      if (node.shadowRoot) walk(node.shadowRoot);
    }
  };
  walk(document);
  const track = window.__track = { count: nodes.length, ticks: 0, replaced: new Set(), on: true };
  const tick = () => {
    if (!track.on) return;
    track.ticks++;
    for (const node of nodes) if (!node.isConnected) track.replaced.add(node);
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""
_TRACKED = """() => {
  const track = window.__track;
  track.on = false;
  const names = [...track.replaced].map((node) => `${node.localName}.${node.className}`);
  return { count: track.count, ticks: track.ticks, replaced: names };
}"""
# From the key press to the display frame that shows a snapshot with the new setting. The wait for
# the snapshot asks for no display frames: drawing sixty a second without a GPU would slow it down.
_ARM = """(path) => {
  const old = window.__kvw.snapshot.settings[path];
  window.__knob = new Promise((done) => {
    let pressed = null;
    const press = () => { pressed = performance.now(); };
    addEventListener("keydown", press, { capture: true, once: true });
    const shown = () => requestAnimationFrame(() => done(performance.now() - pressed));
    const timer = setInterval(() => {
      if (pressed === null || window.__kvw.snapshot.settings[path] === old) return;
      clearInterval(timer);
      requestAnimationFrame(shown); // one draws it, the next begins once it is on the screen
    }, 4);
  });
}"""


def find_chromium() -> str | None:
    """Path of a Chromium: CHROMIUM, then the system's, then the one playwright downloaded."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named if Path(named).is_file() else None
    found = next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)
    if found:
        return found
    home = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    return next((str(path) for path in sorted(home.glob("chromium-*/chrome-linux*/chrome"))), None)


class DashboardPage:
    """One tab at 1280 x 800 on the dashboard, opened with settings in its address."""

    def __init__(self, browser: "Browser", url: str, settings: dict[str, Any]) -> None:
        query = "&".join(f"{path}={value}" for path, value in settings.items())
        self.context = browser.new_context(viewport={"width": 1280, "height": 800})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.page.add_init_script(_WATCH_SHIFTS)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{url}?{query}")
        self._devtools = self.context.new_cdp_session(self.page)
        self._devtools.send("Performance.enable")
        self.page.wait_for_function("window.__kvw && window.__kvw.frames > 1")
        self._apply_offer(settings)

    def _apply_offer(self, settings: dict[str, Any]) -> None:
        self.page.locator(".st-key-offer_apply button").click()
        for path, value in settings.items():
            shown = f"window.__kvw?.snapshot?.settings['{path}'] === {json.dumps(value)}"
            self.page.wait_for_function(shown)
        self.settle()

    def set_threads(self, num_threads: int) -> None:
        """Fix the engine's threads by their knob, which no link may carry."""
        group = self.page.locator(".st-key-more_M summary").first
        field = self.page.locator("[class*='st-key-knob_model_num_threads'] input").first
        if not field.is_visible():
            group.click()
        field.wait_for()
        self.settle()  # the page may still be drawing itself anew after the last change
        field.fill(str(num_threads))
        field.press("Enter")
        shown = f"window.__kvw?.snapshot?.settings['model.num_threads'] === {num_threads}"
        self.page.wait_for_function(shown)
        group.click()
        self.settle()

    def run_requests(self, lines: list[dict[str, Any]]) -> None:
        """Stop what runs and submit these requests as a dropped file; returns once all decode."""
        self.page.locator(".st-key-work button").first.click()
        self.page.locator(".st-key-clear_requests button").first.click()
        self.page.wait_for_function("window.__kvw?.snapshot?.num_running === 0")
        content = "\n".join(json.dumps(line) for line in lines).encode()
        self.page.locator('input[type="file"]').set_input_files(
            {"name": "bench.jsonl", "mimeType": "application/json", "buffer": content}
        )
        self.settle()  # the button is live from an earlier file before this one has arrived
        self.page.locator(".st-key-run_file button:not([disabled])").first.click()
        self.page.wait_for_function(
            "(count) => { const s = window.__kvw?.snapshot; return s && s.num_running === count &&"
            " s.requests.filter((r) => r.status === 'running')"
            ".every((r) => r.num_output_tokens > 0); }",
            arg=len(lines),
        )
        self.page.keyboard.press("Escape")
        self.settle()

    def settle(self, rest_ms: float = 1500) -> None:
        """Wait until no run of the page is under way, and a little longer."""
        self.page.wait_for_selector('[data-test-script-state="notRunning"]', state="attached")
        self.page.wait_for_timeout(rest_ms)

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """A JavaScript value."""
        return self.page.evaluate(script, argument)

    def main_thread_s(self) -> float:
        """Seconds that the page's main thread has been busy so far."""
        metrics = self._devtools.send("Performance.getMetrics")["metrics"]
        return float(next(item["value"] for item in metrics if item["name"] == "TaskDuration"))

    def watch(self, seconds: float) -> tuple[float, float]:
        """(frames shown per second, busy share of the main thread) while nothing is touched."""
        frames, busy_s, at_ms = self._counters()
        self.page.wait_for_timeout(seconds * 1e3)
        frames_after, busy_after_s, after_ms = self._counters()
        elapsed_s = (after_ms - at_ms) / 1e3
        return (frames_after - frames) / elapsed_s, (busy_after_s - busy_s) / elapsed_s

    def _counters(self) -> tuple[int, float, float]:
        busy_s = self.main_thread_s()
        frames, at_ms = self.evaluate("[window.__kvw.frames, performance.now()]")
        return int(frames), busy_s, float(at_ms)

    def track_nodes(self, seconds: float) -> dict[str, Any]:
        """Which of the nodes there are now were replaced: `count`, `ticks`, `replaced` names."""
        self.evaluate(_TRACK)
        self.page.wait_for_timeout(seconds * 1e3)
        tracked: dict[str, Any] = self.evaluate(_TRACKED)
        return tracked

    def knob_ms(self, moves: int) -> list[float]:
        """Milliseconds from a key press on a slider to the picture that has the new setting."""
        slider = self.page.locator(
            f"[class*='st-key-knob_{KNOB.replace('.', '_')}'] input[type=range]"
        )
        times = []
        for move in range(moves):
            slider.focus()
            self.evaluate(_ARM, KNOB)
            self.page.keyboard.press("ArrowLeft" if move % 2 == 0 else "ArrowRight")
            times.append(float(self.evaluate("window.__knob")))
            self.settle(700)
        return times

    def now_ms(self) -> float:
        """The page's clock."""
        return float(self.evaluate("performance.now()"))

    def shifts_since(self, at_ms: float) -> list[dict[str, Any]]:
        """Layout shifts since then, without what input caused: `at`, `value`, `moved` names."""
        shifts: list[dict[str, Any]] = self.evaluate(_SHIFTS, at_ms)
        return shifts

    def shown_cells(self) -> tuple[int, dict[str, list[int]], list[int]]:
        """(seq, planes of G1, block tables) of the picture on screen, read in one go."""
        seq, cells, tables = self.evaluate(
            "[window.__kvw.lastSeq, window.__kvw.readCells('G1'), window.__kvw.readTables()]"
        )
        return int(seq), cells, tables

    def close(self) -> None:
        """Close the tab; an error of its scripts is raised as a sentence."""
        self.context.close()
        if self.errors:
            raise WorkbenchError(f"the dashboard's page raised an error: {self.errors[0]}")
