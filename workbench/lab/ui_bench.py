"""`workbench bench ui`: the real dashboard in a real browser, on a live engine that decodes."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from workbench.clock import RealClock
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.errors import WorkbenchError
from workbench.lab.bench_runs import bench_model, median, random_prompts, refused, submit
from workbench.lab.figures import Figure
from workbench.lab.ui_page import DashboardPage, find_chromium
from workbench.lab.ui_server import ROOT, DashboardServer, Viewer
from workbench.lab.viewer_cost import viewer_figures
from workbench.snapshot import decode_frame

Progress = Callable[[str], None]
NAMES = (
    "ui_frames_per_s", "ui_main_thread_busy", "ui_nodes_replaced", "knob_visible_ms",
    "ui_layout_shift", "ui_cells_differing", "snapshot_ms", "viewer_slowdown",
    "viewer_slowdown_two", "start_to_serving_s",
)  # fmt: skip


@dataclass(frozen=True)
class UiPlan:
    """Sizes of the run; `random_layers` > 0 takes a small random model."""

    min_blocks: int = 16384
    budget_mib: float = 448.0
    num_seqs: int = 8
    prompt_tokens: int = 64
    max_tokens: int = 4000
    watch_s: float = 10.0
    knob_moves: int = 24
    num_reads: int = 3
    num_snapshots: int = 60
    window_s: float = 6.0
    num_cycles: int = 3  # of windows with 0, 1, 2, 2, 1, 0 viewers
    random_layers: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the engine that is looked at."""
        return {
            "model.max_model_len": 4096,
            "cache.hbm_budget_mib": self.budget_mib, "cache.block_size": 4,
            "cache.k_format": "int4", "cache.v_format": "int4",
        }  # fmt: skip

    def requests(self, vocab_size: int) -> list[dict[str, Any]]:
        """Requests that decode for the whole run."""
        prompts = random_prompts(vocab_size, self.num_seqs, self.prompt_tokens, 3)
        return [
            {"token_ids": prompt, "max_tokens": self.max_tokens, "ignore_eos": True}
            for prompt in prompts
        ]


QUICK = UiPlan(
    min_blocks=1000, budget_mib=64.0, num_seqs=4, watch_s=3.0, knob_moves=4, num_reads=1,
    num_snapshots=10, window_s=2.0, num_cycles=1,
)  # fmt: skip


def measure(progress: Progress, *, quick: bool = False, plan: UiPlan | None = None) -> list[Figure]:
    """All figures, or `refused` ones when there is no browser, no playwright or no dashboard."""
    plan = plan or (QUICK if quick else UiPlan())
    missing = missing_parts()
    if missing:
        return refused(NAMES, missing)
    figures = [_snapshot_figure(plan)]
    progress(f"snapshot: {figures[0].value:.2f} ms")
    with tempfile.TemporaryDirectory(prefix="kvw-ui-") as folder:
        with DashboardServer(Path(folder) / "server.log", plan.random_layers) as server:
            figures.append(_start_figure(server, progress))
            figures += _browser_figures(server, plan, progress)
            figures += viewer_figures(
                server, window_s=plan.window_s, num_cycles=plan.num_cycles, progress=progress
            )
    return figures


def _start_figure(server: DashboardServer, progress: Progress) -> Figure:
    """From `streamlit run app` to its first answer; the engine goes on loading beside it."""
    clock = RealClock()
    answered_s = clock.now_s()
    with server.viewer("start") as viewer:
        viewer.wait_frames(1)
    frame_s = server.start_s + clock.now_s() - answered_s
    progress(f"serving after {server.start_s:.1f} s, first live frame after {frame_s:.1f} s")
    return Figure(
        name="start_to_serving_s", value=server.start_s, unit="s",
        note=f"from `streamlit run app` to its first answer; first live frame {frame_s:.1f} s",
    )  # fmt: skip


def missing_parts() -> str:
    """One sentence about what is missing and how to get it; empty when all is there."""
    if not (ROOT / "app/streamlit_app.py").exists():
        return "the dashboard's folder `app` is not here: run this in a checkout of the repository"
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install -e '.[test]'"
    if find_chromium() is None:
        return "no Chromium: sudo apt install chromium, or .venv/bin/playwright install chromium"
    return ""


def _vocab_size(plan: UiPlan) -> int:
    return 257 if plan.random_layers else 49152


def _snapshot_figure(plan: UiPlan) -> Figure:
    """Milliseconds of one frame of a decoding engine in this process, between its steps."""
    model = bench_model("bf16", plan.random_layers)
    engine = Engine(replace_settings(EngineConfig(), plan.settings), model)
    for request in plan.requests(model.arch.vocab_size):
        submit(engine, request["token_ids"], plan.max_tokens)
    times = []
    for index in range(plan.num_snapshots + 5):
        engine.step()
        started_s = engine.clock.now_s()
        frame = engine.frame(index, state="running")
        times.append((engine.clock.now_s() - started_s) * 1e3)
    num_cells = decode_frame(frame)[0].grid[0].num_cells
    engine.close()
    return Figure(
        name="snapshot_ms",
        value=median(times[5:]),
        unit="ms",
        note=f"median of {plan.num_snapshots} frames of {len(frame):,} bytes, {num_cells:,} "
        f"blocks, {plan.num_seqs} requests decoding; largest {max(times[5:]):.1f} ms",
    )


def _browser_figures(server: DashboardServer, plan: UiPlan, progress: Progress) -> list[Figure]:
    from playwright.sync_api import sync_playwright

    from workbench.lab.ui_page import ARGUMENTS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        try:
            page = DashboardPage(browser, server.url, plan.settings)
            # Left alone, the engine takes a core more when nobody looks: no fair comparison.
            page.set_threads(max(1, len(os.sched_getaffinity(0)) - 1))
            page.run_requests(plan.requests(_vocab_size(plan)))
            figures = _look(page, server, plan, progress)
            page.run_requests(plan.requests(_vocab_size(plan)))  # as long as the viewers' windows
            page.close()
            return figures
        finally:
            browser.close()


def _look(
    page: DashboardPage, server: DashboardServer, plan: UiPlan, progress: Progress
) -> list[Figure]:
    num_cells = int(page.evaluate("window.__kvw.snapshot.grid[0].num_cells"))
    if num_cells < plan.min_blocks:
        raise WorkbenchError(
            f"the grid has {num_cells} blocks and {plan.min_blocks} are wanted: raise the budget"
        )
    since_ms = page.now_ms()
    frames_per_s, busy = page.watch(plan.watch_s)
    progress(f"{frames_per_s:.1f} frames/s, main thread {busy:.0%} busy")
    tracked = page.track_nodes(plan.watch_s)
    touched_ms = page.now_ms()
    knob_ms = page.knob_ms(plan.knob_moves)
    shifts = page.shifts_since(since_ms)
    shift = sum(item["value"] for item in shifts)
    alone = sum(item["value"] for item in shifts if item["at"] < touched_ms)
    moved = sorted({str(name)[-60:] for item in shifts for name in item["moved"]})
    progress(f"knob {median(knob_ms):.0f} ms, layout shift {shift:g}")
    compared, differing = _compare_cells(page, server, plan.num_reads)
    step_ms = page.evaluate("window.__kvw.snapshot.last_step.wall_ms")
    live = f"{num_cells:,} blocks in int4, {plan.num_seqs} requests, steps of {step_ms:.0f} ms"
    gone = ", ".join(sorted(set(tracked["replaced"]))[:5])
    return [
        Figure(
            name="ui_frames_per_s", value=frames_per_s, unit="frames/s",
            note=f"over {plan.watch_s:g} s; {live}",
        ),
        Figure(
            name="ui_main_thread_busy", value=busy,
            note=f"share of {plan.watch_s:g} s by the browser's TaskDuration, drawn without a GPU",
        ),
        Figure(
            name="ui_nodes_replaced", value=len(tracked["replaced"]),
            note=f"of {tracked['count']} canvases, parts, knobs and buttons, asked at "
            f"{tracked['ticks']} display frames" + (f": {gone}" if gone else ""),
        ),
        Figure(
            name="knob_visible_ms", value=float(np.percentile(knob_ms, 95)), unit="ms",
            note=f"p95 of {len(knob_ms)} key presses on a slider, until the picture has the new "
            f"setting; median {median(knob_ms):.0f} ms",
        ),
        Figure(
            name="ui_layout_shift", value=shift,
            note="sum of the browser's scores while frames came and the knob was moved; "
            f"{alone:.4f} before the knob" + (f"; moved: {', '.join(moved[:6])}" if moved else ""),
        ),
        Figure(
            name="ui_cells_differing", value=differing,
            note=f"of {compared:,} cell values and table entries read back from the page, against "
            "the frame of the same number",
        ),
    ]  # fmt: skip


def _compare_cells(page: DashboardPage, server: DashboardServer, num_reads: int) -> tuple[int, int]:
    """(values compared, values that differ) between the page and the frames on the socket."""
    compared = differing = 0
    with server.viewer("bench-reader") as viewer:
        viewer.wait_frames(3)
        done = attempts = 0
        while done < num_reads and attempts < 20 * num_reads:
            attempts += 1
            seq, cells, tables = page.shown_cells()
            viewer.wait_frames(1)
            frame = _frame_of(viewer, seq)
            if frame is None:
                continue
            _, planes, expected = decode_frame(frame)
            for name, plane in planes[0].items():
                compared += len(plane)
                differing += _differences(np.array(cells[name]), plane)
            compared += len(expected)
            differing += _differences(np.array(tables), expected)
            done += 1
    if not compared:
        raise WorkbenchError("no frame was seen both on the page and on the socket: try again")
    return compared, differing


def _frame_of(viewer: Viewer, seq: int) -> bytes | None:
    """The kept frame of this number; None if the socket skipped it."""
    return next((frame for frame in viewer.frames if decode_frame(frame)[0].seq == seq), None)


def _differences(shown: np.ndarray, expected: np.ndarray) -> int:
    if shown.shape != expected.shape:
        return max(len(shown), len(expected))
    return int((shown != expected).sum())
