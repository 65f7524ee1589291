"""The page in its other forms, on the real server: *Present*, dark, a phone, a bad link, files."""

import functools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import BrowserContext, expect

from tests.interface.contrast import faint_text
from tests.interface.dashboard import Dashboard, Tab, wait_for

pytestmark = pytest.mark.browser
# How many pixels of a canvas have a colour, and in how many columns it goes from top to bottom.
COLOUR = """(canvas, wanted) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
  const like = (at) => wanted.every((value, i) => Math.abs(data[at + i] - value) < 3);
  let pixels = 0, columns = 0;
  for (let x = 0; x < width; x++) {
    let high = 0;
    for (let y = 0; y < height; y++) high += like(4 * (y * width + x));
    pixels += high;
    columns += high > 0.6 * height;
  }
  return { pixels, columns };
}"""
WARN = [196, 73, 0]
# Of app/.streamlit/config.toml: what is behind everything, text, and the one accent.
BACKGROUND = {"light": [255, 255, 255], "dark": [20, 24, 29]}
TEXT = {"light": [28, 37, 48], "dark": [228, 232, 237]}
ACCENT = {"light": [31, 95, 168], "dark": [125, 180, 236]}


def view_of(tab: Tab) -> Any:
    """How the grid is looked at."""
    return tab.page.evaluate("window.__kvw.view")


def test_present_walks_three_acts_on_the_engine_and_back(tab: Tab) -> None:
    tab.wait_snapshot("s.num_running > 1 && s.step > 5")
    before = tab.snapshot("settings")
    tab.page.get_by_role("button", name="Present").click()
    tab.key("knobs").wait_for(state="detached")
    bar = tab.page.locator(".present")
    next_act, back = (bar.get_by_role("button", name=name) for name in ("Next", "Back"))
    bar.get_by_text("first blocks exist once").wait_for()
    expect(bar).to_contain_text("1 / 3")
    assert view_of(tab)["filter"] == {"kind": "state", "value": "shared"}
    assert bar.evaluate("(node) => getComputedStyle(node).fontSize") == "17px"
    tab.page.wait_for_function("__kvw.readCells('G1').state.some((state) => state & 8)")
    assert back.is_disabled()

    next_act.focus()
    tab.page.keyboard.press("Enter")
    expect(bar).to_contain_text("2 / 3")
    bar.get_by_text("More requests than room").wait_for()
    tab.wait_snapshot("s.num_waiting > 0")
    assert view_of(tab)["lens"] == "age"
    tab.settled()
    tab.page.get_by_role("link", name="Quality").click()
    tab.page.wait_for_url("**/quality**")
    tab.page.get_by_role("link", name="Live").click()
    expect(bar).to_contain_text("2 / 3")  # where it was
    tab.settled()
    back.click()
    tab.wait_snapshot("s.num_waiting === 0")
    expect(bar).to_contain_text("1 / 3")

    for act in ("2 / 3", "3 / 3"):
        tab.settled()
        next_act.click()
        expect(bar).to_contain_text(act)
    tab.wait_setting("cache.k_format", "'int8'")
    tab.wait_setting("cache.v_format", "'int8'")
    tab.wait_snapshot("s.tiers[1].enabled")
    bar.get_by_text("brings the blocks back").wait_for()
    assert view_of(tab)["lens"] == "tier" and next_act.is_disabled()

    tab.settled()
    tab.page.keyboard.press("Escape")
    tab.key("knobs").wait_for()
    bar.wait_for(state="hidden")
    tab.page.get_by_role("button", name="Present").click()
    bar.wait_for()
    tab.settled()
    tab.page.get_by_role("button", name="End", exact=True).click()
    tab.key("knobs").wait_for()
    bar.wait_for(state="hidden")
    assert (view_of(tab)["lens"], view_of(tab)["filter"]) == ("owner", None)
    assert tab.setting("cache.k_format") == "int8"  # what the acts did stays ...
    for undone in ("s.settings['cache.k_format'] === 'bf16' && !s.tiers[1].enabled",
                   "s.num_waiting === 0"):  # fmt: skip
        tab.settled()
        tab.page.get_by_label("Undo").click()  # ... until it is taken back
        tab.wait_snapshot(undone)
    assert tab.snapshot("settings") == before


@pytest.mark.parametrize(
    ("tier", "path", "mib"), [("G2", "tiers.dram_mib", 64), ("G3", "tiers.disk_mib", 256)]
)
def test_add_at_a_tier_that_is_off_adds_it(tab: Tab, tier: str, path: str, mib: int) -> None:
    index = int(tier[1]) - 1
    add = tab.page.get_by_role("button", name=f"Add {tier}")
    add.click()
    tab.wait_setting(path, str(mib))
    size, shown = mib << 20, f"s.tiers[{index}].capacity_bytes"  # a file keeps some for its table
    tab.wait_snapshot(f"s.tiers[{index}].enabled && {shown} > {0.95 * size} && {shown} <= {size}")
    add.wait_for(state="hidden")
    tab.wait_answer(f"Watch {tier}")
    sparks = tab.page.locator("[data-number] .spark")  # a number without samples draws nothing
    wait_for(
        lambda: any(each.evaluate(COLOUR, WARN)["columns"] > 0 for each in sparks.all()),
        20,
        lambda: "no mark",
    )
    tab.settled()
    tab.page.get_by_label("Undo").click()
    tab.wait_setting(path, "0")
    add.wait_for()
    tab.wait_answer("Undone")


def test_copy_gives_link_python_flags_and_both_files(tab: Tab, tmp_path: Path) -> None:
    tab.wait_snapshot("s.events.length > 0")
    tab.press("copy")
    dialog = tab.page.get_by_role("dialog")
    for text in ("EngineConfig()", "vllm serve MODEL", "sglang.launch_server"):
        dialog.get_by_text(text).first.wait_for()
    for name in ("events", "snapshot"):
        with tab.page.expect_download() as download:
            tab.press(f"download_{name}")
        download.value.save_as(tmp_path / download.value.suggested_filename)
    dialog.get_by_label("Close").click()
    dialog.wait_for(state="detached")
    table = pq.read_table(tmp_path / "events.parquet").to_pydict()
    assert list(table) == ["seq", "step", "time_s", "kind", "request_id", "data"]
    assert table["seq"] == sorted(set(table["seq"])) and "admit" in table["kind"]
    assert all(isinstance(json.loads(data), dict) for data in table["data"])
    snapshot = json.loads((tmp_path / "snapshot.json").read_text())
    assert snapshot["settings"] == tab.snapshot("settings")
    assert snapshot["requests"] and snapshot["grid"][0]["num_cells"] > 0


def test_keep_on_a_bad_link_keeps_the_settings(
    tab: Tab, context: BrowserContext, dashboard: Dashboard
) -> None:
    before = tab.snapshot("settings")
    opened = Tab(context, f"{dashboard.url}?cache.kformat=int8")
    for told, offered in (("unknown setting 'cache.kformat'", False),
                          ("cache.block_size = 7 is not allowed", True)):  # fmt: skip
        bar = opened.key("offer_bar")
        warning = bar.get_by_role("alert")
        expect(warning).to_contain_text(f"The link was not fully understood: {told}")
        assert warning.inner_text().strip().endswith(".") and "Error" not in warning.inner_text()
        expect(bar.get_by_text("Apply this change")).to_have_count(int(offered))
        opened.press("offer_keep")
        bar.wait_for(state="detached")
        opened.page.wait_for_function("location.search === ''")
        opened.settled()
        assert opened.snapshot("settings") == before
        if not offered:
            opened.page.goto(f"{dashboard.url}?cache.block_size=7&tiers.dram_mib=32")
    opened.close()


def switch(tab: Tab, scheme: str) -> None:
    """The system turns light or dark, and the page follows."""
    tab.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    background = f"rgb({', '.join(map(str, BACKGROUND[scheme]))})"
    tab.page.wait_for_function(
        f"getComputedStyle(document.querySelector('.stApp')).backgroundColor === '{background}'"
    )


def test_the_canvas_takes_the_palette_of_the_system(tab: Tab) -> None:
    grid, spark = tab.page.locator(".grid-G1 .grid-base"), tab.page.locator(".num .spark").first
    for scheme, share in (("dark", 0.09), ("light", 0.07)):
        switch(tab, scheme)
        back, text = BACKGROUND[scheme], TEXT[scheme]
        free = [round(b + share * (t - b)) for b, t in zip(back, text, strict=True)]
        for canvas, colour in ((grid, free), (spark, ACCENT[scheme])):
            painted = functools.partial(canvas.evaluate, COLOUR, colour)
            wait_for(lambda: painted()["pixels"] > 8, 20, lambda: f"no {colour} in {scheme}")  # noqa: B023
    assert not grid.evaluate(COLOUR, BACKGROUND["dark"])["pixels"]


def readable(tab: Tab, place: str) -> None:
    """All text is 4.5 : 1 or more, in the dark and in the light."""
    for scheme in ("dark", "light"):
        switch(tab, scheme)
        told = f"{place}, {scheme}: "
        wait_for(lambda: not faint_text(tab.page), 3, lambda: told + str(faint_text(tab.page)))  # noqa: B023


def test_text_is_readable_in_the_dark_and_in_the_light(tab: Tab) -> None:
    tab.page.locator(".seq button.link").first.click()  # a chosen sequence has another ground
    tab.page.locator(".seq.chosen").wait_for()
    readable(tab, "Live")
    tab.page.keyboard.press("Escape")
    tab.settled()
    tab.page.get_by_role("button", name="Present").click()
    tab.page.locator(".present").wait_for()
    readable(tab, "Present")
    tab.page.get_by_role("button", name="End", exact=True).click()
    tab.key("knobs").wait_for()
    tab.settled()
    tab.press("copy")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_text("sglang.launch_server").first.wait_for()
    readable(tab, "Export")
    dialog.get_by_label("Close").click()
    dialog.wait_for(state="detached")
    tab.page.get_by_role("link", name="Quality").click()
    tab.key("quality_measure").locator("visible=true").first.wait_for()
    readable(tab, "Quality")
    tab.page.get_by_role("link", name="Live").click()
    tab.page.wait_for_function("window.__kvw && window.__kvw.frames > 1")


def fits(tab: Tab) -> bool:
    """Whether the page scrolls down only."""
    return bool(tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_a_phone_shows_one_view_at_a_time(tab: Tab) -> None:
    with tab.sized(390, 844):
        tab.page.wait_for_function("document.documentElement.scrollWidth <= 390")
        strip = tab.page.locator(".strip-main").bounding_box()
        assert strip is not None and strip["height"] <= 72  # two rows
        assert tab.key("toolbar").evaluate("(node) => node.scrollWidth <= node.clientWidth")
        shown = {"Knobs": "knobs", "Chat": "chat", "Block": "side", "Grid": "middle"}
        for name, part in shown.items():
            tab.page.get_by_role("tab", name=name).click()
            tab.key(part).wait_for()
            hidden = (
                {"knobs", "side", "middle"} - {part} - ({"middle"} if name == "Chat" else set())
            )
            assert not any(tab.key(other).is_visible() for other in hidden), name
            assert fits(tab), name
    tab.page.get_by_role("tab", name="Grid").wait_for(state="hidden")


def test_a_phone_is_used_by_keyboard(tab: Tab) -> None:
    page, path = tab.page, "scheduling.token_budget"
    with tab.sized(390, 844):
        menu = page.get_by_role("button", name="Pages")
        menu.focus()
        page.keyboard.press("Enter")
        live = page.get_by_role("link", name="Live")
        expect(live).to_be_focused()
        page.keyboard.press("Escape")
        expect(menu).to_be_focused()
        assert not live.is_visible()
        page.get_by_role("tab", name="Knobs").focus()
        page.keyboard.press("Enter")
        slider = tab.key("knob_scheduling_token_budget").locator("input[type=range]")
        for _ in range(40):
            if slider.evaluate("(node) => node === document.activeElement"):
                break
            page.keyboard.press("Tab")
        expect(slider).to_be_focused()
        box = slider.bounding_box()
        assert box is not None and 0 <= box["x"] and box["x"] + box["width"] <= 390
        page.keyboard.press("ArrowLeft")
        tab.wait_setting(path, "128")
        tab.settled()
        expect(page.get_by_label("Undo")).to_be_enabled()
        page.get_by_label("Undo").focus()
        page.keyboard.press("Enter")
        tab.wait_setting(path, "256")
        assert fits(tab)
        page.get_by_role("tab", name="Grid").click()
