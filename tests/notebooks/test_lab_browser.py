"""The grid in the real JupyterLab, as `make notebook` opens it."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, expect, sync_playwright

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
TOKEN = "grid-test"
CELLS = (
    f"""import sys; sys.path.insert(0, {str(NOTEBOOKS)!r})
from lesson import live_grid
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.random_launch import random_model
from workbench.request import RequestSpec, SamplingParams
config = replace_settings(EngineConfig(), {{"cache.hbm_budget_mib": 0.25}})
engine = Engine(config, random_model(2, 0))
write = SamplingParams(max_tokens=900, ignore_eos=True)
engine.add_request(RequestSpec(token_ids=list(range(1, 60)), sampling=write))""",
    "grid = live_grid(engine)\ngrid.step(40)",
)

# A notebook shows a cell of its own before the file's, and its kernel's name before that runs.
READY = f"""() => document.querySelectorAll('.jp-Notebook .jp-Cell').length === {len(CELLS)}
    && document.querySelector('.jp-KernelName').innerText.includes('Python 3')
    && document.querySelector('.jp-Notebook-ExecutionIndicator').dataset.status === 'idle'"""


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """JupyterLab over `folder`; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--allow-root",
         f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def run_all(page: Page) -> None:
    """Run each cell by its keys, once the one before has ended."""
    page.wait_for_function(READY, timeout=120_000)
    page.locator(".jp-Notebook .jp-Cell").first.click()
    for number in range(1, len(CELLS) + 1):
        page.keyboard.press("Shift+Enter")
        prompt = page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").nth(number - 1)
        expect(prompt).to_have_text(f"[{number}]:", timeout=120_000)


@pytest.mark.browser
def test_the_grid_follows_the_engine_and_a_click_selects(
    tmp_path: Path, chromium_path: str
) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(notebook, tmp_path / "grid.ipynb")
    with lab(tmp_path) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/lab/tree/grid.ipynb?reset&token={TOKEN}", timeout=90_000)
        run_all(page)
        page.wait_for_function("window.__kvw?.snapshot?.step === 40", timeout=120_000)
        page.wait_for_timeout(500)
        planes = page.evaluate("__kvw.readCells('G1')")
        used = [cell for cell, state in enumerate(planes["state"]) if state & 7 == 2]
        assert len(used) == -(-(59 + 39) // 16)
        painted = page.evaluate("__kvw.painted('G1')")
        assert len({painted[cell] for cell in used}) == 1
        assert painted[used[0]] not in {
            painted[cell] for cell in range(len(painted)) if cell not in used
        }
        x, y, wide, tall = page.evaluate(
            f"Object.values(__kvw.cellRect('G1', {used[1]})).slice(0, 4)"
        )
        page.mouse.click(x + wide / 2, y + tall / 2)
        page.wait_for_function(f"__kvw.selected?.cell === {used[1]}", timeout=30_000)
        assert not errors
        browser.close()
