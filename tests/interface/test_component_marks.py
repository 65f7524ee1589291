"""Evicted tokens in the text, the step's parts and the page menu, in a browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from .component_browser import chromium, opened
from .component_frames import Plan

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    with chromium(chromium_path) as found:
        yield found


def test_the_text_strikes_evicted_tokens_and_the_step_names_its_parts(browser: Browser) -> None:
    with opened(browser, Plan(tick=60)) as view:
        view.freeze()
        view.settle()
        page = view.page
        head = page.locator("#stage .text-head").inner_text().replace("\u00a0", " ")
        assert "Text of request 1" in head and "kept mass 97.2 %, 14 tokens evicted" in head
        struck = page.locator("#stage .tok.evicted")
        assert struck.count() == 14
        line = (
            "(n) => { const s = getComputedStyle(n); return [s.textDecorationLine, +s.opacity]; }"
        )
        assert struck.first.evaluate(line) == ["line-through", 0.42]
        step = page.locator("#stage .step")
        assert "6 decode tokens" in step.inner_text()
        assert [text.split()[0] for text in step.locator(".step-label").all_inner_texts()] == [
            "attention", "linears", "gather", "dequant", "schedule", "other"
        ]  # fmt: skip


def test_pages_open_from_a_menu_on_a_phone(browser: Browser) -> None:
    with opened(browser, width=390, height=844) as view:
        page = view.page
        menu, links = page.locator("#strip .page-menu"), page.locator("#strip .page")
        assert menu.inner_text() == "Live ▾" and not links.first.is_visible()
        menu.click()
        assert links.all_inner_texts() == ["Live", "Tiers"] and links.nth(1).is_visible()
        assert menu.get_attribute("aria-expanded") == "true"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.keyboard.press("Escape")
        assert not links.first.is_visible()
        assert menu.evaluate("(n) => n.getRootNode().activeElement === n")
        page.set_viewport_size({"width": 1280, "height": 800})
        assert not menu.is_visible() and links.first.is_visible()
