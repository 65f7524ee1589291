"""What every test shares: one thread, a browser or the reason why there is none."""

import os
import shutil
import sys
from pathlib import Path

# Before torch is imported: OpenMP threads of two processes on two cores wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from tests.no_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def find_chromium() -> str | None:
    """Path of a Chromium: CHROMIUM, then the system's, then the one playwright downloaded."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named if Path(named).is_file() else None
    for name in CHROMIUM_NAMES:
        if path := shutil.which(name):
            return path
    home = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    return next((str(path) for path in sorted(home.glob("chromium-*/chrome-linux*/chrome"))), None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)  # a test draws the same numbers whatever ran before it
    if item.get_closest_marker("browser") is None or find_chromium() is not None:
        return
    reason = "no Chromium: sudo apt install chromium, or .venv/bin/playwright install chromium"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (in CI no browser test may be skipped)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Path of the browser; a test that uses it carries the marker `browser`."""
    path = find_chromium()
    assert path is not None, "mark this test with pytest.mark.browser"
    return path


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The repository's root folder."""
    return ROOT


@pytest.fixture(scope="session", autouse=True)
def own_calibrations(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The cache folder as it is, but for the calibrations: those of random models go elsewhere."""
    from workbench.model.fetch import cache_dir

    folder, real = tmp_path_factory.mktemp("cache-folder"), cache_dir()
    (real / "converted").mkdir(parents=True, exist_ok=True)
    for entry in real.iterdir():
        if entry.name != "calibration":
            (folder / entry.name).symlink_to(entry)
    os.environ["KV_WORKBENCH_CACHE"] = str(folder)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """One thread for torch, unless a test asks for more itself."""
    import torch

    torch.set_num_threads(1)
