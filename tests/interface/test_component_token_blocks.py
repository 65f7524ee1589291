"""One square for all pages of a token block, until it is opened: by mouse, by key, and as text."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from .component_browser import Opened, opened
from .component_token_blocks import GONE, NUM_GROUPS, NUM_PLACES, token_blocks_frame

pytestmark = pytest.mark.browser
SPOKEN = "document.querySelector('#stage').shadowRoot.querySelector('.sr-only').textContent"
RECTS = "__kvw.readCells('G1').state.map((_, c) => __kvw.cellRect('G1', c))"
WHITE = [255, 255, 255]


@pytest.fixture(scope="module")
def shared_view(browser: Browser) -> Iterator[Opened]:
    with opened(browser, frames=token_blocks_frame) as found:
        found.freeze()
        yield found


@pytest.fixture
def view(shared_view: Opened) -> Opened:
    """The page with nothing chosen, in address order."""
    shared_view.page.locator("#stage select").nth(1).select_option("address")
    for _ in range(3):
        shared_view.page.keyboard.press("Escape")
    shared_view.page.wait_for_function("__kvw.selected === null && !__kvw.view.opened")
    shared_view.settle()
    return shared_view


def click(view: Opened, place: int) -> None:
    at = view.rect(place)
    view.page.mouse.click(at["x"] + at["width"] / 2, at["y"] + at["height"] - 4)


def test_a_token_block_is_one_square_filled_by_what_is_kept(view: Opened) -> None:
    squares = view.page.evaluate("__kvw.squares()")
    assert len(squares) == NUM_PLACES
    assert [s is not None for s in squares] == [True] * 8 + [False] * 16
    kept = [cell for cell in range(20, 30) if cell - 20 not in GONE]
    assert squares[2]["cells"] == kept and squares[2]["missing"] == round(127 * 0.3)
    assert [s["missing"] for s in squares[:8] if s["block"] != 2] == [0] * 7
    at = view.rect(2)
    x = at["x"] + at["width"] / 2
    assert view.pixel(x, at["y"] + 0.15 * at["height"]) == WHITE
    assert view.pixel(x, at["y"] + 0.6 * at["height"]) != WHITE
    assert view.page.locator("#stage .legend-hint").inner_text() == "□ = 10 pages"


def test_a_click_opens_its_pages_and_escape_closes_them(view: Opened) -> None:
    click(view, 2)
    view.wait_text("#side .pages-kept", "7 of 10 pages kept")
    assert view.page.evaluate("__kvw.selected") == {"tier": "G1", "cell": 20}
    pages = view.page.locator("#side .page-cell")
    assert pages.count() == NUM_GROUPS
    gone = view.page.locator("#side .page-cell.gone")
    groups = gone.evaluate_all("all => all.map((node) => +node.dataset.group)")
    assert sorted(groups) == sorted(GONE)
    view.page.locator("#side [data-group='7']").click()
    view.page.wait_for_function("__kvw.selected.cell === 27")
    view.wait_text("#side dl", "layer 3, head 1")
    view.page.keyboard.press("Escape")
    view.page.locator("#side .page-cell").first.wait_for(state="hidden")
    assert view.page.evaluate("__kvw.selected.cell") == 27, "only the pages were closed"
    view.page.locator("#side .token-block button", has_text="Open").click()
    pages.first.wait_for()


def test_keys_move_over_squares_open_and_move_over_kept_pages(view: Opened) -> None:
    view.page.locator("#stage .grid-G1 .grid-over").focus()
    for _ in range(3):
        view.page.keyboard.press("ArrowRight")
    assert view.page.evaluate("__kvw.selected") == {"tier": "G1", "cell": 20}
    assert not view.page.evaluate("__kvw.view.opened")
    view.settle()
    assert view.page.evaluate(SPOKEN).startswith(
        "Token block: in use, 7 of 10 pages kept · tokens 32–47"
    )
    view.page.keyboard.press("Enter")
    focused = "__kvw.focused().getAttribute('aria-label')"
    assert view.page.evaluate(focused) == "layer 0, head 0: in use"
    view.page.keyboard.press("ArrowDown")
    assert view.page.evaluate(focused) == "layer 0, head 1: in use"
    view.page.keyboard.press("ArrowRight")
    assert view.page.evaluate(focused) == "layer 2, head 1: in use", "layer 1 has none"
    view.page.wait_for_function("__kvw.selected.cell === 25")
    view.page.keyboard.press("Escape")
    assert view.page.evaluate("__kvw.focused().dataset.tier") == "G1"
    view.page.keyboard.press("ArrowRight")
    assert view.page.evaluate("__kvw.selected.cell") == 30


def test_squares_by_sequence_and_each_page(view: Opened) -> None:
    order = view.page.locator("#stage select").nth(1)
    order.select_option("sequence")
    view.settle()
    rows = [view.rect(place)["y"] for place in range(8)]
    assert len(set(rows[:4])) == 1 and len(set(rows[4:7])) == 1 and rows[0] < rows[4] < rows[7]
    order.select_option("page")
    view.settle()
    assert view.page.evaluate("__kvw.squares()") is None
    places = view.page.evaluate(RECTS)
    assert len({(r["x"], r["y"]) for r in places}) == NUM_PLACES * NUM_GROUPS
    view.page.locator("#stage [data-filter='request:r2']").click()
    view.settle()
    assert view.page.evaluate("__kvw.view.filter.value") == "r2"


def test_a_filter_dims_token_blocks_of_others(view: Opened) -> None:
    plain = view.page.evaluate("__kvw.painted('G1')")
    view.page.locator("#stage [data-filter='request:r2']").click()
    view.settle()
    dimmed = view.page.evaluate("__kvw.painted('G1')")
    assert [a == b for a, b in zip(plain, dimmed, strict=True)][:8] == [
        True, False, False, False, True, True, True, False
    ]  # fmt: skip


def test_the_tables_list_token_blocks(view: Opened) -> None:
    view.page.locator("#side details.tables summary").click()
    view.wait_text("#side .tables", "20 (7 of 10 pages)")
    view.wait_text("#side .tables", "0–7 of 8")
    view.page.locator("#side details.tables summary").click()
