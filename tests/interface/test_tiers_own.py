"""*Your policy* on the page Tiers: the folder, a file's text, and what loading it does."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import engine_owner
from tests.engine.test_own_policies import POLICY
from tests.interface.dashboard_page import checked, knob
from tests.interface.test_tiers_controls import opened, words
from workbench.own_policies import FOLDER_VARIABLE


def codes(app: AppTest) -> list[str]:
    return [str(item.value) for item in app.code]


def test_an_empty_folder_shows_where_it_is_and_an_example(
    owner: engine_owner.EngineOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "policies"))
    app = opened()
    assert "The folder is empty. Save this as mine.py there" in words(app)
    assert codes(app)[0] == str(tmp_path / "policies")
    assert "class Beginnings(PlacementPolicy)" in codes(app)[1]


def test_a_file_is_shown_run_and_chosen(
    owner: engine_owner.EngineOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    path, text = tmp_path / "file.py", POLICY.format(worth=1, name="mine")
    path.write_text(text)
    app = opened()
    assert text.strip() in codes(app)[1] and "mine" not in knob(app, "tiers.policy").options
    assert owner.client.own_names == {}, "nothing has run yet"
    checked(app.button(key="own_run_file").click().run())
    assert "file.py has registered mine: choose it as the policy." in words(app)
    assert "Registered: mine." in words(app) and "mine" in knob(app, "tiers.policy").options
    checked(knob(app, "tiers.policy").set_value("mine").run())
    assert owner.client.tiers().placement.policy == "mine"

    path.write_text("def register(registry):\n    nonsense()\n")
    checked(app.button(key="tiers_refresh").click().run())
    checked(app.button(key="own_run_file").click().run())
    assert "file.py, line 2, ended with NameError" in words(app)
    assert owner.client.tiers().placement.policy == "mine" and owner.client.own_names
    path.chmod(0o666)
    checked(app.button(key="tiers_refresh").click().run())
    assert "can be written by anybody" in words(app)
    assert all(button.key != "own_run_file" for button in app.button)
    owner.client.apply({"tiers.policy": "lru"})
