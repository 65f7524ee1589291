"""The dashboard as a user starts it, and a browser that looks at it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Locator, Page, ViewportSize
from playwright.sync_api import TimeoutError as PlaywrightTimeout

ROOT = Path(__file__).resolve().parents[2]
SIZE: ViewportSize = {"width": 1280, "height": 800}
WAIT_MS = 90_000  # the machine may be busy; a test that passes waits no longer for it


class Dashboard:
    """`streamlit run app` on a free port, with a small random model, or with `weights`."""

    def __init__(self, cache: Path, layers: str = "2", weights: Path | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.log = cache / "server.log"
        env = os.environ | {
            "KV_WORKBENCH_RANDOM_LAYERS": layers, "OMP_NUM_THREADS": "1",
            "KV_WORKBENCH_CACHE": str(weights.parent if weights else cache),
        }  # fmt: skip
        env.pop("PYTHONPATH", None)  # a user's shell has none
        command = [sys.executable, "-m", "streamlit", "run", "app", "--server.port",
                   str(self.port), "--server.headless", "true"]  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=self.log.open("wb"), stderr=subprocess.STDOUT
        )
        wait_for(self._answers, WAIT_MS / 1e3, lambda: self.log.read_text())

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "_stcore/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def engine_pid(self) -> int:
        """Process id of the engine, the server's child."""
        return self.child_pid(b"workbench.engine.process.server")

    def child_pid(self, module: bytes) -> int:
        """Process id of the server's child that runs a module, which may be about to start."""
        missing = f"the process of {module.decode()} is not there"
        wait_for(lambda: any(self._children(module)), 10, lambda: missing)
        return next(self._children(module))

    def _children(self, module: bytes) -> Iterator[int]:
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                parent = next(line for line in status.read_text().splitlines()
                              if line.startswith("PPid:"))  # fmt: skip
                command = (status.parent / "cmdline").read_bytes()
            except (OSError, StopIteration):
                continue
            if module in command and int(parent.split()[1]) == self.process.pid:
                yield int(status.parent.name)

    def close(self) -> None:
        """Ctrl-C, as a user ends it."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


class Tab:
    """One browser tab on the dashboard, with what the tests ask of it.

    Tabs of one `context` share the browser's cache: only the first one loads and compiles all.
    """

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.page.set_viewport_size(SIZE)
        self.page.set_default_timeout(WAIT_MS)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.outside: list[str] = []  # what was asked of any other machine
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.goto(url)
        self.page.wait_for_function("window.__kvw && window.__kvw.frames > 1")
        self.key("apply").locator("button").wait_for(state="attached")
        self.settled()

    def _asked(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")):
            self.outside.append(url)

    def key(self, name: str) -> Locator:
        """The native element with this key."""
        return self.page.locator(f".st-key-{name}, [class*='st-key-{name}__']")

    def press(self, name: str) -> None:
        """Click a native button by its key."""
        self.key(name).locator("button").locator("visible=true").first.click()

    def settled(self) -> None:
        """Wait until no run of the page is under way."""
        self.page.wait_for_selector('[data-test-script-state="notRunning"]', state="attached")

    def drive(self) -> None:
        """Take over if another tab drives."""
        wait_for(self._drives, 40, lambda: f"cannot drive: {self.page.evaluate('__kvw.link')}")

    def _drives(self) -> bool:
        ready = self.page.evaluate(
            "document.querySelector('.st-key-quick_int8 button')?.disabled === false"
            " && [null, sessionStorage.getItem('kvw-tab')].includes(window.__kvw?.link.driver)"
        )
        button = self.page.get_by_role("button", name="Take over").locator("visible=true")
        if not ready and button.count():
            with contextlib.suppress(PlaywrightTimeout):  # the wheel may come by itself
                button.first.click(timeout=1000)
        return bool(ready)

    @contextlib.contextmanager
    def sized(self, width: int, height: int) -> Iterator[None]:
        """The window in another size for a while."""
        self.page.set_viewport_size({"width": width, "height": height})
        yield
        self.page.set_viewport_size(SIZE)

    def slow(self) -> None:
        """Slow the engine down, so that it leaves the processor to the page."""
        self.page.get_by_label("Speed").select_option("0.1")
        self.wait_snapshot("s.speed < 0.2")

    def snapshot(self, path: str) -> Any:
        """A field of the newest snapshot in the browser, by a JavaScript path."""
        return self.page.evaluate(f"window.__kvw.snapshot?.{path}")

    def wait_snapshot(self, condition: str) -> None:
        """Wait until the newest snapshot `s` fulfils a JavaScript condition."""
        self.page.wait_for_function(
            f"(() => {{ const s = window.__kvw?.snapshot; return s && ({condition}); }})()"
        )

    def setting(self, path: str) -> Any:
        """A setting as the engine reports it to the browser."""
        return self.snapshot(f"settings['{path}']")

    def wait_setting(self, path: str, value: str) -> None:
        """Wait until the engine reports a setting; `value` is JavaScript."""
        self.wait_snapshot(f"s.settings['{path}'] === {value}")

    def answer(self) -> str:
        """The sentence in the answer's place."""
        return self.key("answer").inner_text()

    def wait_answer(self, text: str) -> None:
        """Wait until the answer contains `text`."""
        self.key("answer").get_by_text(text).first.wait_for()

    def choose(self, name: str, label: str) -> None:
        """Pick an option of a native select box."""
        self.key(name).locator("input").click()
        self.page.get_by_role("option", name=label, exact=True).click()

    def close(self) -> None:
        """Close the tab; a script error in it fails the test."""
        self.page.close()
        assert self.errors == [] and self.outside == []


def wait_for(condition: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    """Poll `condition`; raises AssertionError with `why()` after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(why())
        time.sleep(0.1)
