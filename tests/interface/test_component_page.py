"""Behaviour of the mounted parts: reruns, socket, keys, driver, rewind, replay, faces, tables."""

import re
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from app.components.live_view.bundle import default_text
from app.components.live_view.widget import LiveWidget
from workbench.snapshot import TextView, decode_frame, encode_frame

from .component_browser import opened
from .component_frames import Plan, frame_of

NODES = """['strip', 'stage', 'side'].flatMap(
  (part) => [...document.getElementById(part).shadowRoot.querySelectorAll('*')])"""


pytestmark = pytest.mark.browser


def test_no_node_is_replaced_and_nothing_shifts(browser: Browser) -> None:
    with opened(browser) as view:
        view.settle()
        view.page.evaluate(
            f"window.kept = {NODES}.filter(n => !n.closest('.event-list')); window.moved = 0"
        )
        for index in range(4):
            view.page.evaluate(f"rerun({{can_undo: {str(index % 2 == 0).lower()}}})")
            view.page.wait_for_timeout(250)
        assert view.page.evaluate("kept.filter(n => !n.isConnected).length") == 0
        assert view.page.evaluate("moved") < 0.001
        assert (
            view.page.evaluate(
                "document.querySelector('#stage').shadowRoot.querySelectorAll('.kvw').length"
            )
            == 1
        )


def growing_text(tick: int) -> bytes:
    """A frame whose first request has written 40 tokens more each tick; the newest 512 are told."""
    snapshot, cells, tables = decode_frame(frame_of(Plan(tick=tick)))
    end = 40 * tick + 1
    start = max(0, end - 512)
    text = TextView(
        start=start,
        pieces=[piece_at(i) for i in range(start, end)],
        mass=[(31 * i) % 256 for i in range(start, end)],
        evicted=[0] * (end - start),
        num_prompt_tokens=40,
    )
    first, *rest = snapshot.requests
    requests = [msgspec.structs.replace(first, text=text, status="running"), *rest]
    return encode_frame(msgspec.structs.replace(snapshot, requests=requests), cells, tables)


def piece_at(index: int) -> str:
    """A token of the growing text: words, long ones, line ends."""
    if index % 97 == 96:
        return "x" * 200
    return "\n" if index % 61 == 60 else f" w{index * 7919 % 10 ** (1 + index % 5)}"


PLACES = """Object.fromEntries([...document.querySelector('#stage').shadowRoot
  .querySelectorAll('.text-line')].filter((line) => line.querySelector('.tok')).slice(0, -1)
  .map((line) => [line.style.top, line.textContent]))"""


def test_growing_text_moves_no_line_and_leaves_nothing_out(browser: Browser) -> None:
    with opened(browser, frames=growing_text) as view:
        view.tick_to(6)
        view.settle()
        view.page.evaluate("window.moved = 0")
        before: dict[str, str] = {}
        for tick in range(8, 44, 3):
            view.tick_to(tick)
            now = view.page.evaluate(PLACES)
            assert {top: before[top] for top in before if top in now}.items() <= now.items()
            before |= now
        view.freeze()
        view.settle()
        body = view.page.locator("#stage .text-body")
        assert body.locator(".tok").count() < 1100
        assert body.evaluate("(b) => b.scrollHeight - b.scrollTop - b.clientHeight") < 1
        assert body.evaluate("(b) => b.scrollWidth <= b.clientWidth")
        before |= view.page.evaluate(PLACES)
        shown = "".join(before[top] for top in sorted(before, key=lambda top: float(top[:-2])))
        whole = "".join(piece_at(i) for i in range(40 * 44)).replace("\n", "")
        assert shown in whole and len(shown) > 5000
        assert view.page.evaluate("moved") == 0


def test_presses_that_are_not_reported_as_run_are_carried_by_the_next(browser: Browser) -> None:
    with opened(browser) as view:
        view.settle()
        view.page.evaluate("rerun({done: []})")
        for _ in range(2):
            view.page.get_by_label("Pause").click()
        first, second = view.commands("pause")
        assert "earlier" not in first
        assert [command["nonce"] for command in second["earlier"]] == [first["nonce"]]  # type: ignore[attr-defined]
        view.page.evaluate("rerun({done: window.commands.map((c) => c.nonce)})")
        view.page.get_by_label("Pause").click()
        assert "earlier" not in view.commands("pause")[-1]


def test_one_socket_a_tab_says_hello_and_closes_with_the_last_part(browser: Browser) -> None:
    with opened(browser) as view:
        assert view.server.num_open == 1
        assert len(view.server.hellos) == 1 and re.fullmatch(
            r'\{"tab":"[\w-]+"\}', view.server.hellos[0]
        )
        view.page.evaluate("closers.strip(); closers.side()")
        view.page.wait_for_timeout(200)
        assert view.server.num_open == 1
        view.page.evaluate("closers.stage()")
        view.page.wait_for_timeout(400)
        assert view.server.num_open == 0


def test_a_reload_keeps_the_tab_id(browser: Browser) -> None:
    with opened(browser) as view:
        view.page.reload()
        view.page.wait_for_function("window.__kvw && __kvw.lastSeq >= 2")
        assert len(set(view.server.hellos)) == 1 and len(view.server.hellos) == 2


def test_keys_act_only_where_they_should(browser: Browser) -> None:
    with opened(browser) as view:
        page = view.page
        page.keyboard.press(".")
        view.wait_command("step")
        page.keyboard.press(" ")
        view.wait_command("pause")
        page.locator("#strip button[aria-label=Copy], #strip >> text=Copy").first.focus()
        page.keyboard.press("?")
        assert page.locator("#strip [role=dialog]").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#strip [role=dialog]").is_visible()
        page.evaluate("document.getElementById('knobs').append(document.createElement('textarea'))")
        page.locator("textarea").focus()
        page.keyboard.type("a. /? ")
        assert page.locator("textarea").input_value() == "a. /? "
        page.locator("#strip button.icon").first.focus()
        page.keyboard.press(" ")
        view.settle()
        assert len(view.commands("step")) == 1 and len(view.commands("pause")) == 1
        assert len(view.commands("play")) == 1, "the focused button itself"


CHAT_BOX = """(() => { const t = document.createElement('textarea');
  t.dataset.testid = 'stChatInputTextArea'; document.getElementById('knobs').append(t); })()"""
IN_THE_CHAT = "document.activeElement.dataset.testid === 'stChatInputTextArea'"


@pytest.mark.parametrize("view_name", ["live", "quality"])
def test_the_chat_key_goes_to_the_chat_and_waits_for_its_box(
    browser: Browser, view_name: str
) -> None:
    with opened(browser) as view:
        view.page.evaluate(f"rerun({{view: '{view_name}'}})")
        for _ in range(2):
            view.page.keyboard.press("/")
        view.page.evaluate(CHAT_BOX)
        view.page.wait_for_function(IN_THE_CHAT)
        assert view.page.locator("textarea").input_value() == ""
        asked = [command["page"] for command in view.commands("go_page")]
        assert asked == (["live"] if view_name == "quality" else [])
        view.page.evaluate("document.activeElement.blur()")
        view.page.keyboard.press("/")
        assert view.page.evaluate(IN_THE_CHAT), "at once where it is there"


def test_the_list_of_keys_names_those_that_do_something_here(browser: Browser) -> None:
    with opened(browser) as view:
        listed = view.page.locator("#strip [role=dialog] kbd").locator("visible=true")
        for name, keys in (("live", 7), ("quality", 5), ("tiers", 5)):
            view.page.evaluate(f"rerun({{view: '{name}'}})")
            view.page.keyboard.press("?")
            assert listed.count() == keys, name
            assert "/" in listed.all_inner_texts()
            view.page.keyboard.press("Escape")


def test_a_viewer_cannot_drive_and_can_take_over(browser: Browser) -> None:
    with opened(browser) as view:
        view.server.notes.append('{"viewers": 2, "driver": "someone-else"}')
        view.page.wait_for_function("__kvw.link.driver === 'someone-else'")
        view.settle()
        assert view.page.locator("#strip [aria-label=Play]").is_disabled()
        view.page.keyboard.press(".")
        view.page.locator("#strip >> text=Take over").click()
        command = view.wait_command("take_over")
        assert view.commands("step") == [] and f'"{command["tab"]}"' in view.server.hellos[0]


def test_a_dead_engine_keeps_its_last_frame_and_offers_restart(browser: Browser) -> None:
    with opened(browser) as view:
        view.freeze()
        view.server.notes.append('{"dead": "killed by signal 9 at step 812"}')
        face = view.page.locator("#stage .face")
        face.wait_for()
        assert "killed by signal 9 at step 812" in face.inner_text()
        assert view.page.evaluate("__kvw.readCells('G1').state.length") == 155
        face.locator("button").click()
        view.wait_command("restart")


def test_no_requests_offers_to_start_some(browser: Browser) -> None:
    with opened(browser, Plan(empty=True, state="idle")) as view:
        face = view.page.locator("#stage .face")
        face.wait_for()
        assert "No requests" in face.inner_text()
        face.locator("button").click()
        assert view.wait_command("start_workload")["workload"] == "shared_chat"


def test_tiers_below_the_disk_have_a_row_while_they_are_on(browser: Browser) -> None:
    """Bars of one length and a grid that is seen, in room that the first grid gives them."""
    rows = """[...document.querySelector('#stage').shadowRoot.querySelectorAll('.lower-tier')]
      .filter(row => row.offsetHeight).map(row => row.querySelector('.tier-name').textContent)"""
    sizes = """selector => [...document.querySelector('#stage').shadowRoot
      .querySelectorAll(`.lower-tier:not([hidden]) ${selector}`)]
      .map(node => [Math.round(node.offsetWidth), node.offsetHeight])"""
    bottom = "document.querySelector('#stage').shadowRoot.querySelector('.scrubber')"
    bottom += ".getBoundingClientRect().bottom"
    with opened(browser, Plan(tiers=3)) as view:
        view.page.set_viewport_size({"width": 1280, "height": 800})
        bottoms = []
        for tiers in (3, 4, 5, 3):
            view.show(lambda tick, tiers=tiers: frame_of(Plan(tick=tick, tiers=tiers)))
            view.settle()
            assert view.page.evaluate(rows) == ["G2", "G3", "G3.5", "G4"][: tiers - 1]
            bottoms.append(view.page.evaluate(bottom))
            assert len({width for width, _ in view.page.evaluate(sizes, ".bar")}) == 1
            assert {height for _, height in view.page.evaluate(sizes, ".grid")} == {24}
            for name in ("G2", "G3", "G3.5", "G4")[: tiers - 1]:
                assert len(set(view.page.evaluate(f"__kvw.painted('{name}')"))) > 1, name
        assert len(set(bottoms)) == 1, bottoms


def test_loading_shows_progress(browser: Browser) -> None:
    with opened(browser, Plan(empty=True, state="loading")) as view:
        view.page.locator("#stage progress").wait_for()
        assert "Loading the model" in view.page.locator("#stage .face").inner_text()


@pytest.mark.parametrize(
    ("state", "detail", "told"),
    [
        ("paused", "", "Paused: nothing is computed, and the clock of every figure stands still."),
        ("saturated", "saturated num_waiting=19", "19 requests wait: the first needs more blocks"),
        ("thrashing", "thrashing num_preemptions=6 seconds=2", "6 preemptions in 2 s"),
    ],
)
def test_what_a_state_needs_said_stands_in_one_line(
    browser: Browser, state: str, detail: str, told: str
) -> None:
    with opened(browser, Plan(state=state, detail=detail)) as view:
        view.settle()
        note = view.page.locator("#stage .standin")
        assert told in note.inner_text()
        assert note.bounding_box()["height"] == 16  # type: ignore[index]


def test_rewind_shows_an_older_frame_and_escape_returns(browser: Browser) -> None:
    with opened(browser) as view:
        view.tick_to(15)
        view.page.locator("#stage input[type=range]").fill("100")
        view.settle()
        old = view.page.evaluate("__kvw.lastSeq")
        assert old <= 5
        view.tick_to(old)
        view.page.locator("#stage .scrubber button").first.click()
        view.tick_to(16)


def test_an_applied_change_shows_before_and_after(browser: Browser) -> None:
    with opened(browser, Plan(tick=70), ready="window.__kvw && __kvw.lastSeq >= 125") as view:
        view.settle()
        ttft = view.page.locator("#stage [data-number=ttft_p50] .num-change")
        assert "→" in ttft.inner_text() and "undecided" not in ttft.inner_text()
        hits = view.page.locator("#stage [data-number=hit_rate] .num-change")
        assert "undecided" in hits.inner_text()


def test_numbers_say_where_they_come_from(browser: Browser) -> None:
    with opened(browser) as view:
        view.settle()
        ttft = view.page.locator("#stage [data-number=ttft_p50]").inner_text()
        assert "p50, 30 s, measured n 41" in ttft.replace("\n", " ")
        assert (
            "n/a: no token was computed twice"
            in view.page.locator("#stage [data-number=recompute_tax]").inner_text()
        )
        assert (
            "Speed here does not predict a GPU" in view.page.locator("#stage .standin").inner_text()
        )


def test_side_panels_and_tables(browser: Browser) -> None:
    with opened(browser) as view:
        view.settle()
        side = view.page.locator("#side")
        view.wait_text("#side .sequences", "waiting: needs 14 blocks, 9 free or cached")
        view.wait_text("#side .sequences", "differs from token 193")
        side.locator("text=As tables").click()
        rows = side.locator("table").nth(2).locator("tbody tr:visible")
        expect(rows).to_have_count(25)
        side.locator(".tables >> text=Next").click()
        expect(rows.first.locator("td").first).to_have_text("25")
        side.locator("text=Memory").first.click()
        view.settle()
        assert "Process (RSS)" in side.locator(".ledger").inner_text()


def test_details_from_python_fill_the_inspector(browser: Browser) -> None:
    block = {
        "tier": "G1",
        "cell": 0,
        "state": "owned",
        "owners": ["r1"],
        "page_index": 0,
        "first_token": 0,
        "last_token": 15,
        "ref_cnt": 6,
        "key": "9c1e" * 16,
        "parent_key": "",
        "label": "bf16",
        "num_bytes": 368640,
        "last_used_step": 5,
        "mass": 0.031,
        "evict_rank": 0,
        "num_evictable": 96,
        "why": "shared",
        "text": "<b>not markup</b>",
    }
    with opened(browser) as view:
        view.page.evaluate("b => rerun({selected: {tier: 'G1', cell: 0}, block: b})", block)
        view.settle()
        text = view.page.locator("#side .inspector").inner_text()
        assert "9c1e9c1e9c1e…" in text and "3.10" in text and "<b>not markup</b>" in text
        assert view.page.evaluate("__kvw.selected") == {"tier": "G1", "cell": 0}


def test_events_are_filtered_by_kind(browser: Browser) -> None:
    with opened(browser) as view:
        view.settle()
        rows = view.page.locator("#side .event")
        assert view.page.locator("#side .event[data-kind=evict]").count() > 0
        view.page.locator("#side .event-chips >> text=evict").click()
        expect(view.page.locator("#side .event[data-kind=evict]")).to_have_count(0)
        assert rows.count() > 0


def test_phone_tabs_set_the_body(browser: Browser) -> None:
    with opened(browser, width=390, height=844) as view:
        assert view.page.evaluate("document.body.dataset.tab") == "grid"
        view.page.locator("#strip [data-tab=block]").click()
        assert view.page.evaluate("document.body.dataset.tab") == "block"
        assert view.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_present_walks_three_acts(browser: Browser) -> None:
    looks = "(({lens, filter}) => [lens, filter && filter.value])(__kvw.view)"
    with opened(browser) as view:
        view.page.locator("#stage select").first.select_option("refs")
        view.page.evaluate("rerun({present: true, act: 'sharing'})")
        bar = view.page.locator("#stage .present")
        bar.wait_for()
        assert "1 / 3" in bar.inner_text() and "Sharing" in bar.inner_text()
        assert view.page.evaluate(looks) == ["owner", "shared"]
        for act, number in (("pressure", "2 / 3"), ("relief", "3 / 3")):
            bar.locator("text=Next").click()
            assert view.wait_command("present")["act"] == act
            view.page.evaluate(
                f"rerun({{num_viewers: {number[0]}}})"
            )  # of before the press: no news
            assert number in bar.inner_text()
        view.page.evaluate("rerun({act: 'pressure'})")
        assert "2 / 3" in bar.inner_text(), "as far as Python is"
        assert view.page.evaluate(looks) == ["age", None]
        view.page.set_viewport_size({"width": 390, "height": 844})
        text = bar.locator(".act-text").bounding_box()
        assert text is not None and text["width"] > 300, "a line of its own on a phone"
        view.page.evaluate("rerun({present: false, act: ''})")
        bar.wait_for(state="hidden")
        assert view.page.evaluate(looks) == ["refs", None], "as it was before"


def test_the_replay_file_plays_offline(browser: Browser, tmp_path: Path) -> None:
    with opened(browser) as view:
        view.tick_to(12)
        with view.page.expect_download() as download:
            view.page.locator("#stage >> text=Save replay").click()
        path = tmp_path / "replay.html"
        download.value.save_as(path)
    text = path.read_text(encoding="utf-8")
    assert "http://" not in text.replace("http://www.w3.org", "") and 'src="' not in text
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_function("window.__kvw && __kvw.lastSeq >= 1")
    first = page.evaluate("__kvw.lastSeq")
    page.keyboard.press("?")
    keys = page.locator("[role=dialog] kbd").locator("visible=true").all_inner_texts()
    assert "?" in keys and "/" not in keys, "a file has no chat"
    page.keyboard.press("Escape")
    page.locator("[aria-label=Play]").click()
    page.wait_for_function(f"__kvw.lastSeq > {first + 3}")
    page.locator("[aria-label=Pause]").click()
    page.locator("input[type=range]").fill("0")
    page.wait_for_function(f"__kvw.lastSeq === {first}")
    assert frame_of(Plan(tick=first)) and errors == []
    context.close()


def test_the_widget_draws_frames_of_its_model(browser: Browser) -> None:
    shown = LiveWidget(frame_of(Plan(tick=7)), parts=("stage", "side"))
    assert shown.parts == ["stage", "side"] and shown.data["text"]["state.free"] == "free"
    script = """async ([bytes, text, parts]) => {
      const traits = {frame: new DataView(Uint8Array.from(bytes).buffer), data: {text}, parts};
      const model = {get: (n) => traits[n], set: (n, v) => { traits[n] = v; }, on() {}, off() {},
        save_changes() { window.saved = traits.command; }};
      const el = document.body.appendChild(document.createElement("div"));
      const {default: entry} = await import("/widget.js");
      Object.values(closers).forEach((close) => close());
      window.closeWidget = entry.render({model, el});
    }"""
    with opened(browser) as view:
        view.page.evaluate(script, [list(shown.frame), shown.data["text"], shown.parts])
        view.page.wait_for_function("window.__kvw && __kvw.lastSeq === 7")
        assert len(view.page.evaluate("__kvw.readCells('G1').state")) == 155
        view.page.locator(".grid-G1 .grid-over").click(position={"x": 8, "y": 8})
        view.page.wait_for_function("window.saved && saved.name === 'select_block'")
        view.page.evaluate("closeWidget()")


def test_the_first_second_shifts_nothing(browser: Browser) -> None:
    for width, height in ((1280, 800), (390, 844)):
        with opened(browser, width=width, height=height) as view:
            view.tick_to(6)
            view.settle()
            assert view.page.evaluate("moved") < 0.02, width


SENTENCES = [
    ("evict", {"num_blocks": 13, "to_tier": "G2", "for_request_id": "r5"},
     "13 blocks were pushed out to DRAM because request 5 needed room."),
    ("evict", {"num_blocks": 1, "to_tier": "", "for_request_id": "", "from_tier": "G3"},
     "A block was dropped from disk."),
    ("preempt", {"num_blocks": 9, "reason": "no_blocks", "how": "recompute"},
     "Request 2 gave up 9 blocks and will be computed again: no block was free."),
    ("share", {"num_blocks": 12, "num_tokens": 192, "other_request_id": "r1"},
     "Request 2 shares 12 blocks with request 1: 192 tokens were not computed again."),
    ("apply", {"changes": {"cache.k_format": "int8"}, "milliseconds": 41.26},
     "Applied cache.k_format = int8 in 41.3 ms."),
    ("store", {"num_blocks": 2, "tier": "G2", "num_bytes": 737280},
     "2 blocks (720 KiB) were copied to DRAM."),
]  # fmt: skip


def test_events_are_told_in_plain_words(browser: Browser) -> None:
    script = """async ([events, text]) => {
      const {eventSentence, makeWords} = await import("/module.js");
      return events.map((e) => eventSentence(e, __kvw.snapshot, makeWords(text)));
    }"""
    events = [
        {"seq": i, "step": 3, "kind": kind, "request_id": "r2", "data": data}
        for i, (kind, data, _) in enumerate(SENTENCES)
    ]
    with opened(browser) as view:
        told = view.page.evaluate(script, [events, default_text()])
    assert [line.replace("\u00a0", " ") for line in told] == [s for _, _, s in SENTENCES]
