"""The real server, started as a user would, driven in a real browser."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from tests.interface.dashboard import WAIT_MS, Dashboard, Tab, wait_for

pytestmark = pytest.mark.browser


def test_the_first_picture_needs_nothing_configured(tab: Tab, dashboard: Dashboard) -> None:
    tab.wait_snapshot("s.requests.length >= 6 && s.step > 5")
    cells = tab.page.evaluate("window.__kvw.readCells('G1')")
    assert sum(1 for state in cells["state"] if state & 7 == 2) > 10
    assert len(set(tab.page.evaluate("window.__kvw.painted('G1')"))) > 2
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 1280
    maps = Path(f"/proc/{dashboard.process.pid}/maps").read_text()
    assert "libtorch" not in maps and "/torch/" not in maps
    assert b"--server.address" not in Path(f"/proc/{dashboard.process.pid}/cmdline").read_bytes()


def test_the_whole_picture_fits_the_window_and_asks_nobody_else(tab: Tab) -> None:
    tab.wait_snapshot("s.requests.length > 0")
    for part in (".scrubber", ".sentence", ".legend-values"):
        box = tab.page.locator(part).bounding_box()
        assert box is not None and box["y"] + box["height"] <= 800, part
    chat = tab.key("chat").bounding_box()
    assert chat is not None and 700 < chat["y"] + chat["height"] <= 800
    assert tab.outside == []


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_strip_has_its_height_before_its_parts_come(
    context: BrowserContext, dashboard: Dashboard, size: tuple[int, int]
) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.add_init_script("""window.heights = new Set(); setInterval(() => {
      const strip = document.querySelector('.st-key-strip');
      const main = document.querySelector('.stMainBlockContainer');
      if (strip && getComputedStyle(main).paddingTop === '4px')  // our style is there
        window.heights.add(Math.round(strip.getBoundingClientRect().height)); }, 10)""")
    page.goto(dashboard.url)
    page.wait_for_function("window.__kvw && window.__kvw.frames > 1", timeout=WAIT_MS)
    heights = page.evaluate("[...window.heights]")
    page.close()
    assert len(heights) == 1, heights


def test_a_click_selects_a_block(tab: Tab) -> None:
    tab.wait_snapshot("s.step > 5")
    cell = tab.page.evaluate(
        "window.__kvw.readCells('G1').state.findIndex((s) => (s & 7) === 2 && s & 8)"
    )
    box = tab.page.evaluate(f"window.__kvw.cellRect('G1', {cell})")
    grid = tab.page.locator(".grid-G1").bounding_box()
    assert grid is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.page.mouse.click(x, y)
    side = tab.key("side")
    side.get_by_text(f"Block {cell} of G1").wait_for()
    side.locator(".inspector").get_by_text("bf16").wait_for()


def test_key_presses_on_a_slider_are_one_change_and_one_undo(tab: Tab) -> None:
    path = "scheduling.token_budget"
    slider = tab.key("knob_scheduling_token_budget").locator("input[type=range]")
    slider.focus()
    for _ in range(3):
        tab.page.keyboard.press("ArrowLeft")
    tab.wait_setting(path, "32")
    tab.wait_answer("budget 32 tokens")
    tab.page.wait_for_url(f"**{path}=32**")
    tab.settled()
    tab.page.get_by_label("Undo").click()
    tab.wait_setting(path, "256")
    tab.page.wait_for_function("location.search === ''")
    tab.wait_answer("Undone")
    assert slider.get_attribute("aria-valuetext") == "256 tokens"


def test_a_key_press_beside_another_run_is_not_lost(tab: Tab, dashboard: Dashboard) -> None:
    path, engine = "scheduling.chunk_tokens", dashboard.engine_pid()
    slider = tab.key("knob_scheduling_chunk_tokens").locator("input[type=range]")
    grid = tab.page.locator(".grid-G1").bounding_box()
    assert grid is not None
    for turn, (key, value) in enumerate((("ArrowRight", 256), ("ArrowLeft", 128))):
        slider.focus()
        os.kill(engine, signal.SIGSTOP)  # as in a long step: whoever asks the engine waits
        try:
            tab.page.keyboard.press(key)
            tab.page.wait_for_timeout(400)  # its callback waits for the engine
            tab.page.mouse.click(grid["x"] + 10 + 26 * turn, grid["y"] + 10)
            tab.page.wait_for_timeout(400)  # and a newer message has come
        finally:
            os.kill(engine, signal.SIGCONT)
        tab.wait_setting(path, str(value))
        tab.wait_answer(f"chunk {value} tokens")


def test_presses_beside_another_run_are_all_run(tab: Tab, dashboard: Dashboard) -> None:
    # The chunk last: within half a second its change would belong to that of the test before.
    for knob, value in (("token_budget", 128), ("chunk_tokens", 64)):
        tab.key(f"knob_scheduling_{knob}").locator("input[type=range]").focus()
        tab.page.keyboard.press("ArrowLeft")
        tab.wait_setting(f"scheduling.{knob}", str(value))
        tab.settled()
    engine, undo = dashboard.engine_pid(), tab.page.get_by_label("Undo").bounding_box()
    assert undo is not None
    os.kill(engine, signal.SIGSTOP)  # as in a long step: the first press waits for the engine
    try:
        for _ in range(2):  # and the run it caused is in its first moments
            tab.page.mouse.click(undo["x"] + 14, undo["y"] + 14)
            tab.page.wait_for_timeout(60)
        tab.page.get_by_label("Pause").click()
        tab.page.wait_for_timeout(300)
    finally:
        os.kill(engine, signal.SIGCONT)
    tab.wait_setting("scheduling.token_budget", "256")
    tab.wait_setting("scheduling.chunk_tokens", "128")
    tab.wait_snapshot("s.state === 'paused'")
    tab.settled()
    tab.page.get_by_label("Play").click()
    tab.wait_snapshot("s.state !== 'paused'")


def test_back_is_undo(tab: Tab) -> None:
    tab.choose("knob_scheduling_order", "longest prefix")
    tab.wait_setting("scheduling.order", "'longest-prefix-first'")
    tab.page.wait_for_url("**scheduling.order=longest-prefix-first**")
    tab.settled()
    tab.page.go_back()
    tab.wait_setting("scheduling.order", "'fcfs'")
    tab.wait_answer("Undone")


def test_a_format_waits_for_apply_and_says_what_it_will_do(tab: Tab) -> None:
    before = tab.snapshot("grid[0].num_cells")
    tab.choose("knob_cache_v_format", "int8")
    tab.wait_answer("Waiting for Apply")
    tab.wait_answer("re-encoded")
    assert tab.setting("cache.v_format") == "bf16"
    tab.press("apply")
    tab.wait_setting("cache.v_format", "'int8'")
    tab.wait_answer("took")
    tab.wait_snapshot(f"s.grid[0].num_cells > {before}")
    tab.page.get_by_label("Undo").click()
    tab.wait_setting("cache.v_format", "'bf16'")


def test_the_three_buttons(tab: Tab) -> None:
    tab.press("quick_int8")
    tab.wait_answer("Watch each square split in two")
    tab.wait_setting("cache.k_format", "'int8'")
    tab.press("quick_dram")
    tab.wait_answer("Watch G2")
    tab.wait_snapshot("s.tiers[1].enabled")
    tab.press("quick_fill")
    tab.wait_answer("on their way")
    for _ in range(3):
        tab.settled()
        tab.page.get_by_label("Undo").click()
        tab.wait_answer("Undone")
        tab.settled()
    tab.wait_setting("cache.k_format", "'bf16'")
    tab.wait_snapshot("!s.tiers[1].enabled")


def test_a_second_tab_watches_and_takes_over(
    tab: Tab, context: BrowserContext, dashboard: Dashboard
) -> None:
    first = tab
    second = Tab(context, dashboard.url)
    second.key("take_over").wait_for()
    knob = "knob_scheduling_token_budget"
    assert second.key(knob).locator("input").is_disabled()
    first.key(knob).locator("input").focus()
    first.page.keyboard.press("ArrowLeft")
    first.wait_setting("scheduling.token_budget", "128")
    second.page.wait_for_function(
        f"document.querySelector('[class*=st-key-{knob}] input').ariaValueText === '128 tokens'"
    )
    second.press("take_over")
    first.key("take_over").wait_for()
    assert first.key(knob).locator("input").is_disabled()
    second.drive()
    second.key(knob).locator("input").focus()
    second.page.keyboard.press("ArrowRight")
    second.wait_setting("scheduling.token_budget", "256")
    second.close()
    first.page.wait_for_function("window.__kvw.link.driver === null")
    first.key("take_over").wait_for(state="detached")
    assert first.page.get_by_text("Another tab drives").locator("visible=true").count() == 0
    first.key(knob).locator("input").focus()
    first.page.keyboard.press("ArrowLeft")  # the first change made elsewhere takes over
    first.wait_setting("scheduling.token_budget", "128")
    first.page.keyboard.press("ArrowRight")
    first.wait_setting("scheduling.token_budget", "256")


def test_a_reload_keeps_driving(tab: Tab) -> None:
    tab.page.reload()
    tab.page.wait_for_function("window.__kvw && window.__kvw.frames > 1")
    tab.settled()
    tab.key("quick_int8").wait_for()
    assert tab.key("take_over").count() == 0


def test_a_link_is_offered_and_a_bad_setting_named(
    context: BrowserContext, dashboard: Dashboard
) -> None:
    link = dashboard.url + "?cache.kformat=int8&tiers.dram_mib=32&scheduling.chunk_tokens=64"
    tab = Tab(context, link)
    tab.page.get_by_text("unknown setting 'cache.kformat'").wait_for()
    tab.key("offer").get_by_text("Apply these 2 changes").wait_for()
    tab.drive()
    assert tab.setting("tiers.dram_mib") == 0
    grid = tab.page.locator(".grid-G1")
    before = grid.bounding_box()
    tab.press("offer_apply")
    tab.key("offer_bar").wait_for(state="detached")
    assert grid.bounding_box() == before, "the bar lay over the page and moved nothing"
    tab.wait_setting("tiers.dram_mib", "32")
    tab.wait_setting("scheduling.chunk_tokens", "64")
    tab.page.wait_for_function("!location.search.includes('kformat')")
    tab.page.get_by_label("Undo").click()
    tab.wait_setting("tiers.dram_mib", "0")
    tab.close()


def open_work(tab: Tab) -> Any:
    """The place for a file, in the popover of workloads."""
    place = tab.page.locator('input[type="file"]')
    if not place.count():
        tab.press("work")
        place.wait_for(state="attached")
    return place


def test_a_dropped_file_names_each_bad_line(tab: Tab) -> None:
    content = b'{"prompt": "one", "max_tokens": 4}\nnot json\n{"promt": "x"}\n{"prompt": ""}\n'
    file = {"name": "prompts.jsonl", "mimeType": "application/json", "buffer": content}
    open_work(tab).set_input_files(file)
    for text in ("1 of 4 lines can run", "Line 2: is not JSON", "Line 3: has an unknown field",
                 "Line 4: prompt is empty"):  # fmt: skip
        tab.page.get_by_text(text).wait_for()
    tab.press("run_file")
    tab.wait_answer("One request started")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"x" * (4 * 2**20 + 1), "File must be 4.0MB or smaller"),
        (b"\xff\xfe{}", "not UTF-8 text"),
        (b"\n\n", "The file holds no request"),
    ],
    ids=["oversized", "binary", "blank"],
)
def test_a_file_that_cannot_be_used_is_named(tab: Tab, content: bytes, told: str) -> None:
    file = {"name": "prompts.jsonl", "mimeType": "application/json", "buffer": content}
    open_work(tab).set_input_files(file)
    tab.page.get_by_text(told).first.wait_for()
    assert tab.key("run_file").locator("button").count() == 1


def test_chat_joins_the_batch(tab: Tab) -> None:
    box = tab.page.locator('[data-testid="stChatInputTextArea"]')
    box.fill("Hello there")
    box.press("Enter")
    tab.wait_answer("joined the batch")
    tab.wait_snapshot("s.requests.some((r) => r.label === 'ask 1')")


def test_a_killed_engine_keeps_its_picture_and_restarts(tab: Tab, dashboard: Dashboard) -> None:
    tab.wait_snapshot("s.requests.length > 0")
    old = dashboard.engine_pid()
    os.kill(old, signal.SIGKILL)
    tab.key("restart").wait_for()
    tab.key("toolbar").get_by_text("The engine stopped").wait_for()
    assert tab.snapshot("requests.length") > 0
    assert tab.key("knob_scheduling_token_budget").locator("input").is_disabled()
    tab.press("restart")
    tab.key("quick_int8").wait_for()
    wait_for(lambda: dashboard.engine_pid() != old, 10, lambda: "no new engine process")
    tab.wait_snapshot("s.state === 'running' && s.requests.length > 0")
