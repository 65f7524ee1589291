"""The page Tiers in a real browser: the ladder moves, a fault is counted, nothing overflows."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext

from tests.interface.dashboard import Dashboard, Tab

pytestmark = pytest.mark.browser
LADDER = """(() => {
  const roots = [...document.querySelectorAll('*')].map(n => n.shadowRoot);
  const ladder = roots.map(root => root?.querySelector('.ladder')).find(Boolean);
  const rungs = ladder ? [...ladder.querySelectorAll('.rung')] : [];
  return rungs.map(n => n.innerText.replace(/\\s+/g, ' '));
})()"""

# Right edge of what the ladder draws: a box inside may scroll though the page does not.
WIDEST = """(() => {
  const roots = [...document.querySelectorAll('*')].map(n => n.shadowRoot);
  const ladder = roots.map(root => root?.querySelector('.ladder')).find(Boolean);
  return Math.max(...[...ladder.querySelectorAll('*')].map(n => n.getBoundingClientRect().right));
})()"""
ADDED = {"G2": "DRAM", "G3": "disk", "G3.5": "shared store", "G4": "objects"}


@pytest.fixture(scope="module")
def tiers_tab(context: BrowserContext, dashboard: Dashboard) -> Iterator[Tab]:
    opened = Tab(context, dashboard.url)
    opened.drive()
    opened.page.get_by_role("link", name="Tiers").click()
    opened.key("tiers_refresh").locator("visible=true").first.wait_for()
    yield opened
    opened.close()


def test_the_ladder_shows_each_tier_and_adds_one(tiers_tab: Tab) -> None:
    page = tiers_tab.page
    page.wait_for_function(f"{LADDER}.length === 5")
    first, second, *_ = page.evaluate(LADDER)
    assert first.startswith("G1") and "HBM" in first
    assert "off" in second
    for at, (name, told) in enumerate(ADDED.items(), 1):
        page.get_by_label(f"Add {name}", exact=True).locator("visible=true").first.click()
        tiers_tab.wait_snapshot(f"s.tiers.some((t) => t.name === '{name}' && t.enabled)")
        page.wait_for_function(f"{LADDER}[{at}].includes('{told}')")
        tiers_tab.settled()


def test_a_fault_by_button_is_told(tiers_tab: Tab) -> None:
    page = tiers_tab.page
    tiers_tab.press("fault_corrupt_dram")
    page.get_by_text("flip a bit in DRAM").locator("visible=true").first.wait_for()
    page.locator(".st-key-answer").get_by_text("flip a bit in DRAM").first.wait_for()
    tiers_tab.settled()


def test_each_tab_opens_and_a_phone_needs_no_sideways_scroll(tiers_tab: Tab) -> None:
    page = tiers_tab.page
    for name in ("Cost", "Flow", "A block's journey", "Devices", "Worth it?"):
        page.get_by_role("tab", name=name).click()
        tiers_tab.settled()
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    page.wait_for_function(f"{WIDEST} <= 390")
    page.set_viewport_size({"width": 1280, "height": 800})
