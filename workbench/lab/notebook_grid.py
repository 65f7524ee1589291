"""The dashboard's grid in a notebook: frames of an engine that lives in the same process."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from workbench.engine.engine import Engine
from workbench.errors import SettingError, WorkbenchError
from workbench.lab.frame_svg import frame_line, frame_svg
from workbench.lab.workloads import make_workload

FRAMES_PER_S = 10.0
STEPS_OF_A_START = 24  # of the button that an empty grid shows


class Canvas(Protocol):
    """What draws frames: an anywidget whose traits are named as in the live view's module."""

    frame: bytes
    data: dict[str, Any]
    command: dict[str, Any]

    def observe(self, handler: Callable[[Any], None], names: str) -> None:
        """Call `handler(change)` whenever the trait `names` changes."""


class Grid:
    """Shows one engine and steps it; the picture follows while a cell still runs.

    `canvas` is handed in, so that this package needs neither the dashboard nor a widget library.
    Without one the grid is a still picture (SVG), drawn anew when a call of `step` ends and
    requests are left.
    `note`: a line under the still picture.
    """

    def __init__(self, engine: Engine, canvas: Canvas | None = None, *, note: str = "") -> None:
        self.engine = engine
        self.canvas = canvas
        self.note = note
        self.texts: dict[str, str] = {}  # what each request has written here, by its id
        self._seq = 0
        self._sent_s = 0.0
        self._handle: Any = None
        self._draw()
        if canvas is not None:
            canvas.observe(self._obey, names="command")

    def show(self) -> None:
        """Display the grid under the current cell; raises WorkbenchError outside a notebook."""
        try:
            from IPython.display import display
        except ImportError:
            raise WorkbenchError(
                "IPython is not installed: open the notebook with `make notebook`"
            ) from None
        if self.canvas is not None:
            display(self.canvas)
        else:
            self._handle = display(self._still(), raw=True, display_id=True)

    def step(self, num_steps: int = 1) -> None:
        """Advance by up to `num_steps` batches, fewer when no request is left."""
        if num_steps < 1:
            raise SettingError(f"num_steps = {num_steps} is out of range: 1 or more")
        for _ in range(num_steps):
            if not self.engine.has_work():
                break
            for output in self.engine.step():
                name = output.request_id
                self.texts[name] = self.texts.get(name, "") + output.new_text
            if self.engine.clock.wall_s() - self._sent_s >= 1 / FRAMES_PER_S:
                self._draw()
        self.refresh()

    def run(self) -> None:
        """Step until no request is left."""
        while self.engine.has_work():
            self.step(16)

    def refresh(self) -> None:
        """Draw the engine as it is now; the still picture keeps the last moment with a request."""
        self._draw()
        if self._handle is not None and self.engine.has_work():
            self._handle.update(self._still(), raw=True)

    def frame(self) -> bytes:
        """The next frame, numbered from 1."""
        self._seq += 1
        return self.engine.frame(self._seq, state="running" if self.engine.has_work() else "idle")

    def svg(self) -> str:
        """The engine as it is now as a still picture."""
        return frame_svg(self.frame(), note=self.note)

    def _still(self) -> dict[str, str]:
        frame = self.frame()
        return {
            "image/svg+xml": frame_svg(frame, note=self.note),
            "text/plain": frame_line(frame),
        }

    def _draw(self) -> None:
        self._sent_s = self.engine.clock.wall_s()
        if self.canvas is not None:
            self.canvas.frame = self.frame()

    def _obey(self, change: Any) -> None:
        """A click in the picture: inspect a block, or start requests in an empty engine."""
        canvas, command = self.canvas, dict(change["new"])
        if canvas is None:
            return
        name = command.get("name")
        if name == "select_block":
            selected = {"tier": command["tier"], "cell": command["cell"]}
            block = msgspec.to_builtins(self.engine.inspect(**selected))
            canvas.data = {**canvas.data, "selected": selected, "block": block}
        elif name == "clear_selection":
            canvas.data = {**canvas.data, "selected": None, "block": None}
        elif name == "start_workload":
            workload = make_workload(command["workload"])
            for arrival in workload.arrivals[: workload.max_in_flight or 6]:
                self.engine.add_request(arrival.spec)
            self.step(STEPS_OF_A_START)
