"""The grid of a notebook: frames to the canvas, commands back, and the still picture."""

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from workbench.engine.engine import Engine
from workbench.errors import SettingError
from workbench.lab.frame_svg import frame_line, frame_svg
from workbench.lab.notebook_grid import Grid
from workbench.snapshot import FLAG_SHARED, STATE_FREE, decode_frame

SVG = "{http://www.w3.org/2000/svg}"


def live_widget() -> Any:
    from app.components.live_view.widget import LiveWidget

    return LiveWidget()


def shown(widget: Any) -> tuple[Any, list[dict[str, np.ndarray]]]:
    snapshot, cells, _ = decode_frame(widget.frame)
    return snapshot, cells


def test_every_call_of_step_ends_with_the_engine_as_it_is(engine: Engine) -> None:
    widget = live_widget()
    grid = Grid(engine, widget)
    assert shown(widget)[0].step == engine.num_steps
    grid.step(3)
    snapshot, cells = shown(widget)
    assert snapshot.step == engine.num_steps == 5
    assert cells[0]["state"].shape == (snapshot.grid[0].num_cells,)
    assert snapshot.seq >= 2


def test_run_ends_with_no_request_and_keeps_what_was_written(engine: Engine) -> None:
    grid = Grid(engine, live_widget())
    grid.run()
    assert not engine.has_work()
    assert set(grid.texts) == {"1", "2"}
    steps = engine.num_steps
    grid.step(5)
    assert engine.num_steps == steps


def test_frames_follow_while_a_cell_runs(engine: Engine) -> None:
    widget, steps = live_widget(), []
    grid = Grid(engine, widget)
    widget.observe(lambda change: steps.append(shown(widget)[0].step), names="frame")
    now = iter(np.arange(1e12, 1e12 + 100))
    engine.clock.wall_s = lambda: float(next(now))  # type: ignore[method-assign]
    grid.step(4)
    assert steps[:4] == [3, 4, 5, 6]


def test_a_click_brings_everything_about_the_block(engine: Engine) -> None:
    widget = live_widget()
    Grid(engine, widget)
    cell = int(np.flatnonzero(shown(widget)[1][0]["state"] & FLAG_SHARED)[0])
    widget.command = {"name": "select_block", "tier": "G1", "cell": cell, "nonce": "a"}
    assert widget.data["selected"] == {"tier": "G1", "cell": cell}
    assert sorted(widget.data["block"]["owners"]) == ["1", "2"]
    widget.command = {"name": "clear_selection", "nonce": "b"}
    assert widget.data["block"] is None


def test_the_button_of_an_empty_grid_starts_requests(engine: Engine) -> None:
    widget = live_widget()
    grid = Grid(engine, widget)
    grid.run()
    engine.intake.accept = accept_tokens(engine)  # type: ignore[method-assign]
    widget.command = {"name": "start_workload", "workload": "shared_chat", "nonce": "c"}
    assert len(engine.requests) + len(engine.finished) > 2


def accept_tokens(engine: Engine) -> Callable[[Any], Any]:
    """Chats cut to what the small random model can hold."""
    import msgspec

    whole = engine.intake.accept

    def accept(spec: Any) -> Any:
        return whole(msgspec.structs.replace(spec, messages=None, token_ids=[5, 6, 7]))

    return accept


def test_zero_steps_are_refused_in_a_sentence(engine: Engine) -> None:
    with pytest.raises(SettingError, match=r"num_steps = 0 is out of range: 1 or more"):
        Grid(engine).step(0)


def test_the_picture_has_every_block_once_and_tells_its_numbers(engine: Engine) -> None:
    frame = engine.frame(1, state="running")
    snapshot, cells, _ = decode_frame(frame)
    state = cells[0]["state"]
    root = ElementTree.fromstring(frame_svg(frame, note="a & b"))
    paths = [path for path in root.iter(SVG + "path") if path.get("d")]
    edges = [path for path in paths if path.get("stroke") == "#1f2430"]
    slashes = [path for path in paths if "l" in path.get("d", "")]
    squares = [path for path in paths if path not in edges and path not in slashes]
    assert sum(path.get("d", "").count("M") for path in squares) == len(state)
    shared = int(((state & FLAG_SHARED) > 0).sum())
    assert shared and sum(path.get("d", "").count("M") for path in edges) == 2 * shared
    used = int(((state & 7) == 2).sum())
    assert f"{used} of {len(state)} blocks in use" in root.get("aria-label", "")
    assert root.get("aria-label") == frame_line(frame)
    words = [text.text for text in root.iter(SVG + "text")]
    assert "<reader> 1" in words and "a & b" in words
    assert int(((state & 7) == STATE_FREE).sum()) > 0


def test_a_cell_keeps_its_bytes_worth_of_area(engine: Engine) -> None:
    def area(path: Any) -> float:
        wide, tall = re.findall(r"[hv]([\d.]+)", path.get("d"))[:2]
        return float(wide) * float(tall)

    def free_area() -> float:
        root = ElementTree.fromstring(Grid(engine).svg())
        free = [path for path in root.iter(SVG + "path") if path.get("stroke") == "#d5d8de"]
        return area(free[0])

    before, cells = free_area(), engine.snapshot().grid[0].num_cells
    engine.apply({"cache.k_format": "int8", "cache.v_format": "int8"})
    ratio = engine.snapshot().grid[0].num_cells / cells
    assert ratio > 1.4
    assert free_area() < before / 1.2


def test_no_frame_no_picture() -> None:
    with pytest.raises(ValueError, match="not a frame"):
        frame_svg(b"nothing")


def test_the_still_picture_follows_until_the_last_request_ends(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import IPython.display

    pictures: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            pictures.append(data["image/svg+xml"])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        pictures.append(data["image/svg+xml"])
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    grid = Grid(engine, note="two readers")
    grid.show()
    grid.step(2)
    grid.run()
    assert "step 2<" in pictures[0] and "step 4<" in pictures[1]
    assert all("0 of" not in picture for picture in pictures)
