"""The grid in a real browser, fed by frames over a real WebSocket."""

import numpy as np
import pytest
from playwright.sync_api import Browser

from workbench.snapshot import PLANES, decode_frame

from .component_browser import opened
from .component_frames import Plan, cells_of, frame_of, tables_of

pytestmark = pytest.mark.browser


def test_cells_equal_what_python_decodes(browser: Browser) -> None:
    with opened(browser, Plan(tiers=3)) as view:
        tick = view.freeze()
        snapshot, cells, tables = decode_frame(frame_of(Plan(tiers=3, tick=tick)))
        for grid, planes in zip(snapshot.grid, cells, strict=True):
            shown = view.page.evaluate(f"__kvw.readCells('{grid.name}')")
            for plane in PLANES:
                assert np.array_equal(shown[plane], planes[plane]), (grid.name, plane)
        assert np.array_equal(view.page.evaluate("__kvw.readTables()"), tables)
        assert view.page.evaluate("__kvw.snapshot.model_name") == snapshot.model_name


def test_a_broken_frame_is_named_and_skipped(browser: Browser) -> None:
    frames = lambda tick: b"nonsense" if tick == 3 else frame_of(Plan(tick=tick))  # noqa: E731
    with opened(browser, frames=frames, ready="window.__kvw && __kvw.lastSeq >= 5") as view:
        assert view.page.evaluate("__kvw.badFrame") == "not a frame: the first bytes must be KVF1"


def test_a_click_selects_the_block_under_it(browser: Browser) -> None:
    with opened(browser) as view:
        for cell in (0, 7, 77, 154):
            view.page.mouse.click(*view.middle(cell))
            assert view.page.evaluate("__kvw.selected") == {"tier": "G1", "cell": cell}
            view.page.wait_for_function(f"commands.some(c => c.tier === 'G1' && c.cell === {cell})")
            view.wait_text("#side h3", f"Block {cell} of G1")


def test_arrows_move_over_blocks_and_send_one_command_at_rest(browser: Browser) -> None:
    with opened(browser) as view:
        view.page.mouse.click(*view.middle(0))
        view.wait_command("select_block")
        for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
            view.page.keyboard.press(key)
        assert view.page.evaluate("__kvw.selected.cell") == 2
        view.page.wait_for_function("commands.at(-1).cell === 2")
        assert len(view.commands("select_block")) <= 4, "not one a press"
        x, y = view.middle(2)
        view.page.keyboard.press("ArrowDown")
        below = view.page.evaluate("__kvw.selected.cell")
        assert below != 2 and view.middle(below)[0] == pytest.approx(x, abs=3)
        spoken = "document.querySelector('#stage').shadowRoot.querySelector('.sr-only').textContent"
        view.settle()
        assert view.page.evaluate(spoken).startswith(f"G1 block {below}: ")


def test_the_legend_filters_and_a_sequence_dims_the_others(browser: Browser) -> None:
    with opened(browser) as view:
        tick = view.freeze()
        plain = view.page.evaluate("__kvw.painted('G1')")
        view.settle()
        view.page.locator("#stage [data-filter='request:r2']").click()
        view.settle()
        dimmed = view.page.evaluate("__kvw.painted('G1')")
        table = tables_of(Plan(tick=tick))[1]
        same = np.array(plain) == np.array(dimmed)
        assert same[table].all() and not np.delete(same, table).any()
        view.page.locator("#stage [data-filter='request:r2']").click()
        view.page.locator("#stage [data-filter='state:cached']").click()
        view.settle()
        same = np.array(view.page.evaluate("__kvw.painted('G1')")) == np.array(plain)
        cached = cells_of(Plan(tick=tick), tables_of(Plan(tick=tick)))["state"] & 7 == 1
        assert np.array_equal(same, cached)


def test_each_lens_paints(browser: Browser) -> None:
    with opened(browser, Plan(recoded=4)) as view:
        view.freeze()
        for lens in ("tier", "format", "refs", "mass", "age", "owner"):
            view.page.locator("#stage select").first.select_option(lens)
            view.settle()
            colours = set(view.page.evaluate("__kvw.painted('G1')"))
            assert len(colours) >= (3 if lens == "tier" else 4), lens


@pytest.mark.parametrize(
    ("plan", "low", "high", "hint"),
    [
        (Plan(), 12, 99, ""),
        (Plan(num_slabs=64, cells_per_slab=40, shared_pages=40), 6, 12, "under 12 px"),
        (Plan(num_slabs=256, cells_per_slab=64, shared_pages=99), 0.5, 6, "under 6 px"),
    ],
)
def test_detail_follows_size_and_the_legend_says_so(
    browser: Browser, plan: Plan, low: float, high: float, hint: str
) -> None:
    with opened(browser, plan) as view:
        view.settle()
        assert low <= view.page.evaluate("__kvw.cellSize('G1')") < high
        assert view.page.locator("#stage .legend-hint").inner_text().startswith(hint)
        assert view.page.locator("#stage .chip.unseen").count() == {"": 0, "under 12 px": 1}.get(
            hint, 2
        )
        cell = plan.num_cells // 2
        view.page.mouse.click(*view.middle(cell))
        assert view.page.evaluate("__kvw.selected.cell") == cell


def test_a_format_change_splits_squares_in_their_slab(browser: Browser) -> None:
    frames = lambda tick: frame_of(Plan(tick=tick, recoded=0 if tick < 8 else 4))  # noqa: E731
    with opened(browser, frames=frames) as view:
        before = view.page.evaluate("[__kvw.cellRect('G1', 0), __kvw.cellRect('G1', 20)]")
        view.tick_to(9)
        view.settle()
        after = view.page.evaluate("[0, 1, 5, 40].map(c => __kvw.cellRect('G1', c))")
        assert after[0]["x"] == before[0]["x"] and after[0]["y"] == before[0]["y"]
        assert after[3] == before[1], "a slab that was not recoded stays where it was"
        area = [r["width"] * r["height"] for r in (before[0], after[0])]
        assert area[1] == pytest.approx(area[0] / 2, rel=0.25)


def test_light_and_dark_repaint_the_canvas(browser: Browser) -> None:
    with opened(browser) as view:
        view.freeze()
        free = view.page.evaluate("__kvw.readCells('G1').state.lastIndexOf(0)")
        light = view.pixel(*view.middle(free))
        view.page.evaluate(
            "document.documentElement.style.setProperty('--st-background-color', '#0e1117')"
        )
        view.settle()
        dark = view.pixel(*view.middle(free))
        assert light == [255, 255, 255] and dark == [14, 17, 23]


def test_the_system_scheme_is_followed_without_streamlit(browser: Browser) -> None:
    with opened(browser) as view:
        view.freeze()
        view.page.emulate_media(color_scheme="dark")
        view.settle()
        free = view.page.evaluate("__kvw.readCells('G1').state.lastIndexOf(0)")
        assert view.pixel(*view.middle(free)) == [15, 18, 22]


def test_grouped_by_sequence_keeps_each_cell_once(browser: Browser) -> None:
    with opened(browser) as view:
        view.freeze()
        view.page.locator("#stage select").nth(1).select_option("sequence")
        view.settle()
        rects = view.page.evaluate(
            "__kvw.readCells('G1').state.map((s, c) => __kvw.cellRect('G1', c))"
        )
        assert len({(r["x"], r["y"]) for r in rects}) == len(rects)
        view.page.mouse.click(*view.middle(20))
        assert view.page.evaluate("__kvw.selected.cell") == 20
