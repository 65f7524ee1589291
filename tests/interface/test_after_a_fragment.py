"""A run that follows a fragment's in the same thread draws the page where it belongs.

The table of the page Tiers is such a fragment, every three seconds. A click in the moment it ends
is run by its thread, with what the fragment drew into still on Streamlit's stack.
"""

from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from app import engine_owner
from app.driver import Driver
from app.engine_owner import EngineOwner
from tests.interface.dashboard import ROOT
from workbench.client import EngineClient
from workbench.config import EngineConfig


def run_inside(path: str) -> None:
    """The script of a tab whose thread was left inside a container."""
    import runpy

    import streamlit as st
    from streamlit.delta_generator_singletons import context_dg_stack

    context_dg_stack.set((*context_dg_stack.get(), st.container(key="of_a_fragment")))
    runpy.run_path(path, run_name="__main__")


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    client = EngineClient.start(EngineConfig(), random_layers=2, wait=True)
    monkeypatch.setattr(engine_owner._HOLDER, "owner", EngineOwner(client, Driver()))
    yield
    client.close()


def test_nothing_is_drawn_inside_it(owner: None) -> None:
    app = AppTest.from_function(run_inside, args=(str(ROOT / "app" / "main.py"),))
    app.run(timeout=60)
    assert not app.exception
    first, *others = app.main.children.values()
    assert not first.children, "the page lies beside it"
    assert len(others) == 2, "strip and columns"
