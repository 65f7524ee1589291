"""The chat's key on pages that have no chat: it leads to Live, and the cursor stands in the box."""

import pytest

from tests.interface.dashboard import Dashboard, Tab

pytestmark = pytest.mark.browser
TYPED = "hello from afar"


@pytest.mark.parametrize(("name", "there", "size"), [
    ("Quality", "quality_measure", (1280, 800)), ("Tiers", "tiers_refresh", (390, 844)),
])  # fmt: skip
def test_the_chat_key_leads_to_the_chat(
    tab: Tab, dashboard: Dashboard, name: str, there: str, size: tuple[int, int]
) -> None:
    page = tab.page
    with tab.sized(*size):
        if size[0] < 640:
            page.get_by_role("button", name="Pages, now Live").click()
        page.get_by_role("link", name=name).click()
        tab.key(there).locator("visible=true").first.wait_for()
        tab.settled()
        assert page.locator('[data-testid="stChatInputTextArea"]').count() == 0
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("/")
        page.wait_for_function("document.activeElement.dataset.testid === 'stChatInputTextArea'")
        tab.settled()
        page.keyboard.type(TYPED)
        box = page.locator('[data-testid="stChatInputTextArea"]')
        assert box.input_value() == TYPED and box.is_visible()
        assert page.url.split("?")[0] == dashboard.url
        box.fill("")
        page.evaluate("document.activeElement.blur()")
        page.evaluate("document.body.dataset.tab = 'grid'")
