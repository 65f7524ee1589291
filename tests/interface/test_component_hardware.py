"""The GPU's figures in the strip: all that NVML tells; without a GPU one quiet chip says why."""

import msgspec
import pytest
from playwright.sync_api import Browser

from workbench.engine.views.hardware import NAMES
from workbench.snapshot import Number, decode_frame, encode_frame
from workbench.views import WeightNote

from .component_browser import opened
from .component_frames import Plan, frame_of

pytestmark = pytest.mark.browser
WHY = "no NVIDIA GPU (NVML Shared Library Not Found)"
VALUES = {"gpu_memory": 22_630.4, "gpu_utilization": 41.0, "gpu_power": 310.4, "pcie_rx": 1240.0,
          "pcie_tx": 310.0}  # fmt: skip


def frame_with(hardware: dict[str, Number], tick: int, **changes: object) -> bytes:
    snapshot, cells, tables = decode_frame(frame_of(Plan(tick=tick)))
    return encode_frame(
        msgspec.structs.replace(snapshot, hardware=hardware, **changes), cells, tables
    )


def without(tick: int) -> bytes:
    return frame_with({k: Number(value=None, unit=u, why=WHY) for k, u in NAMES.items()}, tick)


def on_gpu(tick: int) -> bytes:
    """A GPU with no NVLink, whose load moves from frame to frame."""
    moved = {**VALUES, "gpu_utilization": float(7 * tick % 101), "pcie_rx": 40.0 * tick**2}
    shown = VALUES if tick < 4 else moved
    numbers = {
        name: Number(value=shown.get(name), unit=unit, why="" if name in shown else "Not Supported")
        for name, unit in NAMES.items()
    }
    return frame_with(numbers, tick, device="cuda", stands_in=False)


@pytest.mark.parametrize("width", [1280, 390])
def test_without_a_gpu_one_chip_says_why(browser: Browser, width: int) -> None:
    with opened(browser, frames=without, width=width) as view:
        view.settle()
        chip = view.page.locator("#strip .gpu")
        assert chip.inner_text() == "GPU n/a"
        assert chip.get_attribute("aria-label") == f"GPU n/a: {WHY}"
        chip.focus()
        tip = view.page.locator("#strip [role=tooltip]")
        assert tip.inner_text() == f"GPU n/a: {WHY}"
        strip = view.page.locator("#strip .strip-main").bounding_box()
        assert strip is not None and strip["height"] <= (40 if width > 640 else 80)


def test_with_a_gpu_the_strip_shows_every_figure(browser: Browser) -> None:
    with opened(browser, frames=lambda tick: on_gpu(3), width=1920) as view:
        view.settle()
        item = view.page.locator("#strip .gpu")
        parts = item.locator(".gpu-part").locator("visible=true").all_inner_texts()
        assert [part.replace("\u00a0", " ") for part in parts] == [
            "GPU 41 %", "22.1 GiB", "310 W", "PCIe ↓1.24 ↑0.31 GB/s", "NVLink n/a",
        ]  # fmt: skip
        tops = item.locator(".gpu-part[data-part]").evaluate_all("all => all.map(e => e.offsetTop)")
        assert len(set(tops)) == 1, "none is in the line that does not show"
        told = str(item.get_attribute("aria-label")).replace("\u00a0", " ")
        assert "PCIe to the GPU 1 240 MB/s" in told.replace("\u202f", " ")
        assert "NVLink from the GPU n/a: Not Supported" in told


def test_figures_that_change_move_nothing(browser: Browser) -> None:
    with opened(browser, frames=on_gpu, ready="window.__kvw && __kvw.lastSeq >= 5") as view:
        view.settle()
        view.page.evaluate("window.moved = 0")
        view.tick_to(25)
        assert view.page.evaluate("moved") == 0
        shown = view.page.locator("#strip .gpu").bounding_box()
        assert shown is not None and shown["width"] >= 186 and shown["height"] == 16


def test_more_numbers_name_what_the_gpu_does(browser: Browser) -> None:
    with opened(browser, frames=lambda tick: on_gpu(3)) as view:
        view.page.locator("#side >> text=More numbers").click()
        view.settle()
        listed = view.page.locator("#side .all-numbers").inner_text()
        assert "GPU power" in listed and "NVLink to the GPU" in listed
        assert not [name for name in NAMES if name in listed]


def test_the_model_says_what_its_weights_do_to_the_tokens(browser: Browser) -> None:
    note = WeightNote(kind="auto", values={"rows": 4})

    def frames(tick: int) -> bytes:
        snapshot, cells, tables = decode_frame(without(tick))
        noted = msgspec.structs.replace(snapshot, weight_notes=[note])
        return encode_frame(noted, cells, tables)

    with opened(browser, frames=frames) as view:
        view.settle()
        titles = view.page.locator("#strip .strip-main [title]").evaluate_all(
            "nodes => nodes.map((node) => node.title)"
        )
    assert any(title.endswith(f"; {note.plain()}") for title in titles), titles
