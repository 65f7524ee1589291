"""What is drawn is what the frame says: marks of cells, changes, tokens and the step; motion."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Browser

from tests.engine.harness import Runner, build, tokens
from workbench.snapshot import (
    FLAG_MOVING,
    FLAG_SHARED,
    NO_OWNER,
    STATE_CACHED,
    STATE_FREE,
    STATE_OWNED,
    ApplyReport,
    Snapshot,
    TextView,
    TierGrid,
    decode_frame,
    encode_frame,
)

from .component_browser import Opened, opened
from .component_frames import Plan, frame_of
from .dashboard import wait_for

pytestmark = pytest.mark.browser
OWNED, SHARED, CACHED, FREE = 40, 41, 42, 43  # cells of these tests
TEXT, WHITE, WARN, ACCENT = (31, 36, 48), (255, 255, 255), (196, 73, 0), (47, 111, 208)
OWNER = (0, 114, 178)
BASE, OVER = ".grid-G1 .grid-base", ".grid-G1 .grid-over"
SAMPLE = """([x, y]) => {
  const c = document.querySelector('#stage').shadowRoot.querySelector('.grid-G1 .grid-base');
  const box = c.getBoundingClientRect(), pen = c.getContext('2d');
  window.samples = [];
  const look = () => {
    const colour = [...pen.getImageData(x - box.x, y - box.y, 1, 1).data].slice(0, 3);
    if (String(samples.at(-1)?.[1]) !== String(colour)) samples.push([performance.now(), colour]);
    window.sampling = requestAnimationFrame(look);
  };
  cancelAnimationFrame(window.sampling);
  look();
}"""
# Frames of the display that pass, and how many the component asked for meanwhile.
ASKED = """async (count) => {
  const real = window.requestAnimationFrame;
  let asked = 0;
  window.requestAnimationFrame = (fn) => { asked++; return real(fn); };
  for (let i = 0; i < count; i++) await new Promise((done) => real(done));
  window.requestAnimationFrame = real;
  return asked;
}"""


@pytest.fixture(scope="module")
def shared_view(browser: Browser) -> Iterator[Opened]:
    with opened(browser) as found:
        yield found


@pytest.fixture
def view(shared_view: Opened) -> Opened:
    """The page with nothing chosen, the pointer away, at the usual motion and colours."""
    shared_view.page.locator("#stage select").first.select_option("owner")
    shared_view.page.emulate_media(reduced_motion="no-preference")
    shared_view.page.mouse.move(0, 0)
    for _ in range(2):
        shared_view.page.keyboard.press("Escape")
    shared_view.page.wait_for_function("__kvw.selected === null")
    return shared_view


def frames(**states: int) -> Callable[[int], bytes]:
    """Frames whose cells 40 to 43 are owned, shared, cached and free, or in the states given."""
    plain = {"owned": STATE_OWNED, "shared": STATE_OWNED | FLAG_SHARED,
             "cached": STATE_CACHED, "free": STATE_FREE}  # fmt: skip
    wanted = list((plain | states).values())

    def make(tick: int) -> bytes:
        snapshot, cells, tables = decode_frame(frame_of(Plan(tick=tick, tiers=2)))
        planes = {name: plane.copy() for name, plane in cells[0].items()}
        planes["state"][OWNED : FREE + 1] = wanted
        owned = [state & 7 == STATE_OWNED for state in wanted]
        planes["owner"][OWNED : FREE + 1] = np.where(owned, 3, NO_OWNER)
        for name, low, high in (("refs", 1, 6), ("mass", 24, 255), ("age", 24, 255)):
            planes[name][[OWNED, SHARED]] = low, high
        lower = {name: plane[:8] for name, plane in cells[1].items()}
        grid = [snapshot.grid[0], TierGrid(name="G2", num_cells=8, slab_bytes=0, slabs=[])]
        return encode_frame(msgspec.structs.replace(snapshot, grid=grid), [planes, lower], tables)

    return make


def inside(view: Opened, cell: int, tier: str = "G1", edge: int = 2) -> Any:
    """Pixels [height, width, RGB] of a cell without its edge."""
    at = view.rect(cell, tier)
    size = at["width"] - 2 * edge, at["height"] - 2 * edge
    return view.pixels(f".grid-{tier} .grid-base", at["x"] + edge, at["y"] + edge, *size)[..., :3]


def is_colour(pixels: Any, colour: tuple[int, int, int]) -> Any:
    """Which pixels have a colour, but for rounding."""
    return (np.abs(pixels[..., :3].astype(int) - colour) <= 2).all(-1)


def test_each_state_has_a_texture_of_its_own(view: Opened) -> None:
    view.show(frames())
    assert is_colour(inside(view, OWNED), OWNER).all()
    wait_for(lambda: bool(is_colour(inside(view, FREE), WHITE).all()), 20, lambda: "no fade ends")
    assert not is_colour(inside(view, FREE, edge=0)[0], WHITE).any(), "an outline"
    for tier, cell in (("G1", CACHED), ("G2", 0)):
        hatched = inside(view, cell, tier)
        assert (hatched[1:, :-1] == hatched[:-1, 1:]).all(), "lines from lower left to upper right"
        row = [tuple(pixel) for pixel in hatched[0].tolist()]
        assert len(set(row)) >= 2 and row[0] == row[5], f"each 5 px another line in {tier}"


@pytest.mark.parametrize("lens", ["refs", "mass", "age"])
def test_the_legend_has_the_colours_of_the_grid(view: Opened, lens: str) -> None:
    view.show(frames())
    view.page.locator("#stage select").first.select_option(lens)
    view.settle()
    ends = view.page.locator("#stage .legend-values .swatch").evaluate_all(
        "all => all.map((node) => getComputedStyle(node).backgroundColor)"
    )
    cells = view.page.evaluate("__kvw.painted('G1')")
    for end, cell in ((ends[0], OWNED), (ends[-1], SHARED)):
        red, green, blue = cells[cell] & 255, cells[cell] >> 8 & 255, cells[cell] >> 16 & 255
        assert end == f"rgb({red}, {green}, {blue})"


def test_a_shared_block_has_a_double_edge(view: Opened) -> None:
    view.show(frames())
    for turned in (inside(view, SHARED, edge=0), inside(view, SHARED, edge=0).swapaxes(0, 1)):
        across = turned[turned.shape[0] // 2]
        for side in (across, across[::-1]):
            drawn = [tuple(pixel) for pixel in side[:5].tolist()]
            assert drawn == [TEXT, WHITE, TEXT, OWNER, OWNER]
    assert is_colour(inside(view, OWNED, edge=0), OWNER).all()


def test_a_block_in_transfer_has_a_moving_edge(view: Opened) -> None:
    view.show(frames(owned=STATE_OWNED | FLAG_MOVING))
    view.freeze()
    at = view.rect(OWNED)
    edge = [OVER, at["x"], at["y"], at["width"], 2]
    dashes = is_colour(view.pixels(*edge), ACCENT)[0]
    assert 4 <= dashes.sum() < len(dashes) - 3, "dashes and gaps"
    before = view.pixels(*edge)
    wait_for(lambda: bool((view.pixels(*edge) != before).any()), 20, lambda: "it stands still")


def test_an_evicted_block_fades_over_400_ms(view: Opened) -> None:
    view.show(frames())
    view.page.evaluate(SAMPLE, list(view.middle(OWNED)))
    view.show(frames(owned=STATE_FREE))
    view.page.wait_for_function("String(samples.at(-1)[1]) === '255,255,255'")
    times, colours = zip(*view.page.evaluate("samples"), strict=True)
    assert colours[0] == list(OWNER) and len(colours) >= 4
    assert all(a[0] < b[0] for a, b in zip(colours, colours[1:], strict=False)), "ever lighter"
    assert times[-1] - times[1] >= 300


def test_reduced_motion_stops_what_moves(view: Opened) -> None:
    view.show(frames())
    view.page.emulate_media(reduced_motion="reduce")
    view.page.evaluate(SAMPLE, list(view.middle(OWNED)))
    view.show(frames(owned=STATE_FREE, shared=STATE_OWNED | FLAG_MOVING))
    view.page.wait_for_function("String(samples.at(-1)[1]) === '255,255,255'")
    assert [colour for _, colour in view.page.evaluate("samples")] == [list(OWNER), list(WHITE)]
    view.page.evaluate("cancelAnimationFrame(sampling)")
    view.freeze()
    view.settle()  # the slow panels have drawn the last frame
    at = view.rect(SHARED)
    before = view.pixels(OVER, at["x"], at["y"], at["width"], at["height"])
    assert is_colour(before, ACCENT).any(), "its edge is there"
    assert view.page.evaluate(ASKED, 20) == 0
    assert (view.pixels(OVER, at["x"], at["y"], at["width"], at["height"]) == before).all()


def ring_width(view: Opened, cell: int, tier: str) -> list[float]:
    """How many px of the ring's accent lie at the left, top, right and bottom of a cell."""
    at, reach = view.rect(cell, tier), 5
    name = f".grid-{tier} .grid-over"
    box = [at["x"] - reach, at["y"] - reach, at["width"] + 2 * reach, at["height"] + 2 * reach]
    blue = view.pixels(name, *box).astype(float)
    share = (255 - blue[..., 0]) * (blue[..., 3] / 255) / (255 - ACCENT[0])  # of red, from white
    half_y, half_x = share.shape[0] // 2, share.shape[1] // 2
    across, down = share[half_y], share[:, half_x]
    return [float(part.sum()) for part in
            (across[:half_x], down[:half_y], across[half_x:], down[half_y:])]  # fmt: skip


def test_the_ring_of_a_block_at_any_edge_lies_inside_the_canvas(view: Opened) -> None:
    view.show(frames())
    view.freeze()
    rects = view.page.evaluate("__kvw.readCells('G1').state.map((_, c) => __kvw.cellRect('G1', c))")
    corner = [min(range(len(rects)), key=lambda i: x * rects[i]["x"] + y * rects[i]["y"])
              for x in (1, -1) for y in (1, -1)]  # fmt: skip
    for tier, cells in (("G1", [*corner, OWNED]), ("G2", [0, 7])):
        for cell in cells:
            view.page.mouse.click(*view.middle(cell, tier))
            view.page.mouse.move(0, 0)
            view.page.wait_for_function(f"__kvw.selected?.cell === {cell}")
            assert ring_width(view, cell, tier) == pytest.approx([2] * 4, abs=0.2), (tier, cell)


SPARK = "[data-number=ttft_p50] .spark"


def marked_columns(view: Opened) -> list[int]:
    """Columns of a sparkline that are a mark of a change from top to bottom."""
    view.settle()
    size = view.page.locator(f"#stage {SPARK}").bounding_box()
    assert size is not None
    drawn = view.pixels(SPARK, *(size[name] for name in ("x", "y", "width", "height")))
    share = is_colour(drawn, WARN).mean(0)
    return [int(column) for column in np.flatnonzero(share > 0.6)]


def applied(version: int | None) -> Callable[[int], bytes]:
    """Frames of another engine, 2 s from one to the next; its newest change has that version."""
    report = None if version is None else ApplyReport(
        version=version, changes={"cache.k_format": "int8"}, previous={}, kinds={})  # fmt: skip

    def make(tick: int) -> bytes:
        snapshot, cells, tables = decode_frame(frame_of(Plan(tick=tick)))
        changed = msgspec.structs.replace(snapshot, time_s=2 * tick - 10_000, last_apply=report)
        return encode_frame(changed, cells, tables)

    return make


def test_a_change_of_settings_is_a_mark_on_the_sparklines(view: Opened) -> None:
    view.show(applied(None))
    now = 2 * view.freeze() - 10_000
    assert marked_columns(view) == []
    view.page.evaluate("at => rerun({marks: [{time_s: at, label: 'int8'}]})", now - 30)
    width = view.page.evaluate(f"document.querySelector('#stage').shadowRoot"
                               f".querySelector('{SPARK}').width")  # fmt: skip
    assert marked_columns(view) == [round((width - 2) / 2 + 1)], "in the middle of the 60 s"
    view.page.evaluate("rerun({marks: []})")
    before = view.server.tick
    view.show(applied(5))
    view.tick_to(before + 7)
    after = view.freeze()
    (column,) = marked_columns(view)
    ticks_ago = (width - 1 - column) * 30 / (width - 2)
    assert after - before - 3 <= ticks_ago <= after - before + 1, "where the engine's report came"


def told_numbers(text: str) -> list[float]:
    return [float(found.replace("\u202f", "")) for found in re.findall(r"[\d.\u202f]+", text)]


def test_the_step_strip_tells_the_tokens_and_milliseconds_of_the_frame(view: Opened) -> None:
    runner = Runner(build({"cache.k_format": "int8", "cache.v_format": "int8"}))
    for seed in (1, 2):
        runner.add(tokens(40, seed), 12)
    kinds = set()
    for steps in (1, 2, 1):  # the prompts are 80 tokens, a step has 32
        runner.step(steps)
        view.show(lambda tick: runner.engine.frame(tick, state="running"))
        step = decode_frame(runner.engine.frame(1, state="running"))[0].last_step
        assert step is not None
        kinds.add((step.num_prefill_tokens > 0, step.num_decode_tokens > 0))
        view.wait_text("#stage .step-title", f"Step {step.step}: ")
        title = told_numbers(view.page.locator("#stage .step-title").inner_text())
        assert title[:3] == [step.step, step.num_prefill_tokens, step.num_decode_tokens]
        assert title[3] == pytest.approx(step.wall_ms, rel=0.01, abs=0.006)
        parts = [getattr(step, f"{part}_ms") for part in PARTS]
        labels = view.page.locator("#stage .step-label").all_inner_texts()
        assert [text.split()[0] for text in labels] == list(PARTS.values())
        shown = [told_numbers(text)[0] for text in labels]
        assert shown == pytest.approx(parts, rel=0.01, abs=0.006) and min(parts) > 0
        assert spans(view) == pytest.approx([part / sum(parts) for part in parts], abs=0.001)
    assert kinds == {(True, False), (False, True)}


PARTS = {"attention": "attention", "linears": "linears", "gather": "gather",
         "dequant": "dequant", "scheduler": "schedule", "other": "other"}  # fmt: skip


def spans(view: Opened) -> list[float]:
    """Share of the bar that each part of the step takes; they follow each other."""
    clips = view.page.locator("#stage .step-part").evaluate_all(
        "all => all.map((n) => n.style.clipPath.match(/[\\d.]+%/g).map(parseFloat))"
    )
    edges = [(left / 100, 1 - right / 100) for right, left in clips]
    assert [a[0] for a in edges] == pytest.approx([0, *(a[1] for a in edges[:-1])], abs=0.001)
    return [end - start for start, end in edges]


def test_evicted_tokens_are_faded_and_struck(view: Opened) -> None:
    window = {"retention.policy": "sink+window", "retention.sink_tokens": 4,
              "retention.window_tokens": 12, "retention.budget_tokens": 16}  # fmt: skip
    runner = Runner(build(window))
    runner.add(tokens(48), 24)
    runner.step(6)
    view.show(frames())  # of other requests: the text begins anew
    view.show(lambda tick: runner.engine.frame(tick, state="running"))
    text = first_text(decode_frame(runner.engine.frame(1, state="running"))[0])
    view.settle()
    styles = view.page.locator("#stage .tok").evaluate_all(TOKENS)
    assert "".join(piece for piece, *_ in styles) == "".join(text.pieces).replace("\n", "")
    gone = "".join(p for p, out in zip(text.pieces, text.evicted, strict=True) if out)
    assert 0 < len(gone) < len("".join(text.pieces))
    struck = [style for style in styles if style[1] == "line-through"]
    assert "".join(piece for piece, *_ in struck) == gone.replace("\n", "")
    assert {opacity for *_, opacity in struck} == {0.42}
    assert {opacity for _, line, opacity in styles if line == "none"} == {1}


TOKENS = """all => all.map((node) => {
  const style = getComputedStyle(node);
  return [node.textContent, style.textDecorationLine, Number(style.opacity)];
})"""


def first_text(snapshot: Snapshot) -> TextView:
    """The text of the one request."""
    (request,) = snapshot.requests
    assert request.text is not None
    return request.text
