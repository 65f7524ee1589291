"""Figures that are told only in some states: hits after a preemption, waste of contiguous rooms."""

from collections.abc import Callable

import msgspec
import pytest
from playwright.sync_api import Browser

from tests.engine.harness import Runner, build, pages, tokens
from workbench.snapshot import Number, decode_frame, encode_frame

from .component_browser import opened
from .component_frames import Plan, frame_of

pytestmark = pytest.mark.browser
HITS = "#stage [data-number=hit_rate] .num-basis"


def frames(
    resumed: Number | None, num_preemptions: float = 3.0, changed: bool = False, **numbers: Number
) -> Callable[[int], bytes]:
    def make(tick: int) -> bytes:
        plan = Plan(tick=tick + 90 if changed else tick % 40)
        snapshot, cells, tables = decode_frame(frame_of(plan))
        shown = {**snapshot.numbers, **numbers}
        shown["num_preemptions"] = Number(value=num_preemptions, unit="")
        if resumed is not None:
            shown["hit_rate_resumed"] = resumed
        more = {"numbers": shown, "seq": tick}
        if numbers:
            more["settings"] = {"cache.allocation": "contiguous"}
        return encode_frame(msgspec.structs.replace(snapshot, **more), cells, tables)

    return make


RESUMED = Number(value=83.4, unit="%", samples=240)
NONE_BACK = Number(value=None, unit="%", why="no preempted request has come back yet")


def test_hits_after_a_preemption_stand_under_the_hits(browser: Browser) -> None:
    with opened(browser, frames=frames(RESUMED, 0.0)) as view:
        view.settle()
        lines = view.page.locator(HITS)
        assert lines.all_inner_texts() == ["measured", "n 41"], "nothing was preempted"
        view.page.evaluate("window.moved = 0")
        view.show(frames(RESUMED))
        view.settle()
        told = [text.replace("\u00a0", " ") for text in lines.all_inner_texts()]
        assert told == ["measured, n 41", "resumed 83.4 %"]
        title = str(lines.nth(1).get_attribute("title")).replace("\u00a0", " ")
        assert title == "Hits after preemption: 83.4 %, n 240, measured"
        fits = "all => all.every(e => e.scrollWidth <= e.clientWidth)"
        assert lines.evaluate_all(fits)
        view.show(frames(NONE_BACK))
        view.settle()
        assert lines.nth(1).inner_text() == "resumed n/a"
        assert "no preempted request has come back" in str(lines.nth(1).get_attribute("title"))
        assert view.page.evaluate("moved") == 0


def test_a_changed_setting_keeps_both(browser: Browser) -> None:
    ready = "window.__kvw && __kvw.lastSeq >= 50"
    with opened(browser, frames=frames(RESUMED, changed=True), ready=ready) as view:
        view.settle()
        lines = view.page.locator(HITS).all_inner_texts()
        assert lines[0].replace("\u00a0", " ") == "n 41 → 7"
        assert lines[1].replace("\u00a0", " ") == "resumed 83.4 %"


@pytest.mark.parametrize("width", [1280, 390])
def test_waste_stands_beside_g1_while_rooms_are_contiguous(browser: Browser, width: int) -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    with opened(browser, frames=still(runner), width=width) as view:
        view.settle()
        flow, waste = (view.page.locator(f"#stage .tier {c}").first
                       for c in (".tier-flow", ".tier-waste"))  # fmt: skip
        assert flow.is_visible() and not waste.is_visible()
        runner.engine.apply({"cache.allocation": "contiguous"})
        ids = [runner.add(tokens(8, seed), 32) for seed in range(3)]
        runner.step(2)
        runner.engine.abort(ids[1])
        runner.step()
        view.show(still(runner))
        view.wait_text("#stage .tier-waste", "out")
        numbers = runner.engine.snapshot().numbers
        inside, between = (numbers[f"{name}_waste"].value for name in ("internal", "external"))
        assert inside and between
        said = waste.inner_text().replace("\u00a0", " ")
        assert said == f"waste {round(inside)} % in, {round(between)} % out"
        assert waste.is_visible() and not flow.is_visible()
        box, row = waste.bounding_box(), view.page.locator("#stage .tier").first.bounding_box()
        assert box is not None and row is not None
        assert box["x"] + box["width"] <= row["x"] + row["width"]
        assert waste.evaluate("e => e.scrollWidth <= e.clientWidth")
        waste.focus()
        assert "reserved for tokens" in view.page.locator("#stage [role=tooltip]").inner_text()


def test_the_bar_of_g1_keeps_its_length_beside_waste(browser: Browser) -> None:
    def shown(inside: float | None, between: float) -> Callable[[int], bytes]:
        return frames(None, 0.0, internal_waste=Number(value=inside, unit="%"),
                      external_waste=Number(value=between, unit="%"))  # fmt: skip

    with opened(browser) as view:
        widths = []
        for make in (frames(None, 0.0), shown(7.4, 3.0), shown(93.6, 88.8), shown(None, 0.0)):
            view.show(make)
            view.settle()
            bar = view.page.locator("#stage .tier .bar").first.bounding_box()
            assert bar is not None
            widths.append(bar["width"])
        assert len(set(widths)) == 1, widths


def still(runner: Runner) -> Callable[[int], bytes]:
    """The engine as it is now, at every tick: the server's thread must not look into it."""
    snapshot, cells, tables = decode_frame(runner.engine.frame(1, state="running"))
    return lambda tick: encode_frame(msgspec.structs.replace(snapshot, seq=tick), cells, tables)
