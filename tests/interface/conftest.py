"""What the interface's tests share: one browser, and an engine's owner for tests without one."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext

from app import engine_owner
from tests.interface.component_browser import chromium
from tests.interface.dashboard import Dashboard, Tab


@pytest.fixture(scope="package")
def browser(chromium_path: str) -> Iterator[Browser]:
    """One headless browser for all tests of this folder; each opens contexts of its own."""
    with chromium(chromium_path) as found:
        yield found


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One user's browser for the tabs of a module."""
    found = browser.new_context(color_scheme="light")
    yield found
    found.close()


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """The real server with a small random model."""
    running = Dashboard(tmp_path_factory.mktemp("cache"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def first_tab(context: BrowserContext, dashboard: Dashboard) -> Iterator[Tab]:
    """The tab that stays open; its engine runs in slow motion."""
    opened = Tab(context, dashboard.url)
    opened.drive()
    opened.slow()
    yield opened
    opened.close()


@pytest.fixture
def tab(first_tab: Tab) -> Tab:
    """The tab that stays open, driving."""
    first_tab.drive()
    return first_tab


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine_owner.EngineOwner]:
    """The owner of a real engine process with a small random model, in slow motion."""
    patch = pytest.MonkeyPatch()
    patch.setenv(engine_owner.RANDOM_LAYERS_VARIABLE, "2")
    patch.setenv("KV_WORKBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    running = engine_owner.get_owner()
    running.client.wait_ready(60)
    running.client.set_speed(0.1)
    yield running
    engine_owner.close_owner()
    patch.undo()
