"""Opens the component's test page in Debian's Chromium."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from .component_frames import Plan, frame_of
from .component_page import FrameServer

PIXELS = """([name, x, y, width, height]) => {
  const c = document.querySelector('#stage').shadowRoot.querySelector(name);
  const b = c.getBoundingClientRect(), d = devicePixelRatio;
  const at = [x - b.x, y - b.y, width, height].map((v) => Math.round(v * d));
  return [...c.getContext('2d').getImageData(...at).data]; }"""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Opened:
    """A page with its server, the frames it shows and the errors it raised."""

    page: Page
    server: FrameServer
    errors: list[str]

    def tick_to(self, tick: int) -> None:
        """Waits until the frame of `tick` or a later one is shown."""
        self.page.wait_for_function(f"window.__kvw && __kvw.lastSeq >= {tick}")

    def freeze(self) -> int:
        """Stops the frames; returns the tick that is shown from now on."""
        self.server.frozen = True
        self.page.wait_for_function(f"window.__kvw && __kvw.lastSeq === {self.server.tick}")
        return self.server.tick

    def show(self, frames: Callable[[int], bytes]) -> None:
        """Serves other frames from now on; returns when one of them is shown."""
        self.server.frozen = False
        self.server.frames = frames
        self.tick_to(self.server.tick + 2)  # the next one may be made already

    def rect(self, cell: int, tier: str = "G1") -> dict[str, float]:
        """Where a cell lies, in CSS pixels of the page."""
        found: dict[str, float] = self.page.evaluate(f"__kvw.cellRect('{tier}', {cell})")
        return found

    def middle(self, cell: int, tier: str = "G1") -> tuple[float, float]:
        """The point in the middle of a cell."""
        at = self.rect(cell, tier)
        return at["x"] + at["width"] / 2, at["y"] + at["height"] / 2

    def pixels(self, canvas: str, x: float, y: float, width: float, height: float) -> Any:
        """u8 [height, width, RGBA] of a canvas of the stage; the point in the page's CSS pixels."""
        found = self.page.evaluate(PIXELS, [canvas, x, y, width, height])
        return np.array(found, np.uint8).reshape(round(height), round(width), 4)

    def pixel(self, x: float, y: float) -> list[int]:
        """RGB of the grid at a point of the page."""
        colour: list[int] = self.pixels(".grid-G1 .grid-base", x, y, 1, 1)[0, 0, :3].tolist()
        return colour

    def commands(self, name: str) -> list[dict[str, object]]:
        """Commands of that name received so far."""
        found: list[dict[str, object]] = self.page.evaluate("window.commands")
        return [c for c in found if c["name"] == name]

    def wait_command(self, name: str) -> dict[str, object]:
        """The newest command of that name, once there is one."""
        self.page.wait_for_function(f"window.commands.some(c => c.name === '{name}')")
        return self.commands(name)[-1]

    def wait_text(self, selector: str, text: str) -> None:
        """Waits until the element at `selector` contains `text`."""
        self.page.locator(selector).first.filter(has_text=text).wait_for()

    def settle(self) -> None:
        """Waits for two display frames and the slow panels."""
        self.page.wait_for_timeout(320)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A headless browser; `path` is its executable."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser,
    plan: Plan | None = None,
    *,
    frames: Callable[[int], bytes] | None = None,
    width: int = 1280,
    height: int = 800,
    scheme: str = "light",
    query: str = "",
    ready: str = "window.__kvw && __kvw.lastSeq >= 2",
) -> Iterator[Opened]:
    """The test page fed with `plan`, one tick a frame, until the block ends."""
    base = plan or Plan()
    make = frames or (lambda tick: frame_of(replace(base, tick=base.tick + tick)))
    server = FrameServer(make)
    address = server.start()
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(90_000)  # the machine may be busy
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address + query)
    page.wait_for_function(ready)
    try:
        yield Opened(page, server, errors)
    finally:
        context.close()
        server.stop()
    assert errors == []
