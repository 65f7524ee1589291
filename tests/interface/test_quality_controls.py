"""The controls of the page Quality on a real engine and a real job, without a browser."""

import pytest
from streamlit.testing.v1 import AppTest

from app import engine_owner
from app.panels.quality_results import PICK_KEY
from app.quality.jobs import follow_until
from app.quality.settings import CURRENT, format_settings
from tests.interface.dashboard import ROOT


def opened() -> AppTest:
    """The page Quality in a session of its own."""
    app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    checked(app.run())
    app.session_state["tab_state"].goto = "quality"
    return checked(app.run())


def checked(app: AppTest) -> AppTest:
    """No script may raise."""
    assert [error.message for error in app.exception] == []
    return app


def words(app: AppTest) -> str:
    """All captions and paragraphs of the page."""
    return "\n".join(str(item.value) for item in [*app.caption, *app.markdown]).replace("\\", "")


def press(app: AppTest, key: str) -> AppTest:
    return checked(app.button(key=key).click().run())


def ended(app: AppTest, owner: engine_owner.EngineOwner) -> AppTest:
    """The page once the job is over."""
    assert follow_until(owner.quality, lambda status: not status.running, 90)
    return checked(app.run())


def test_an_empty_page_measures_this_setting(owner: engine_owner.EngineOwner) -> None:
    app = opened()
    assert "No setting has been measured yet" in words(app)
    assert not app.button(key="quality_all").disabled
    app = press(app, "quality_measure")
    assert "Measuring one setting: current." in words(app)
    assert app.button(key="quality_measure").disabled and app.button(key="quality_sweep").disabled
    other = opened()  # another tab sees the same job
    assert any(button.key == "quality_cancel" for button in other.button)
    app = ended(app, owner)
    result = owner.quality.result(CURRENT)
    assert result is not None and result.live
    assert f"n {result.report.num_scored_tokens:,} scored tokens" in words(app)
    assert app.button(key="quality_measure").label == "Measure again"
    assert "The engine runs this setting." in words(app)


def test_a_sweep_of_chosen_formats_and_apply(owner: engine_owner.EngineOwner) -> None:
    app = opened()
    app = press(app, "sweep_none")
    app = press(app, "quality_sweep")
    assert "No setting is chosen" in words(app)
    app = press(app, "sweep_all")
    assert app.button_group(key="sweep_formats").value == [s.name for s in format_settings()]
    app.button_group(key="sweep_formats").set_value(["int8"])
    app.button_group(key="sweep_retention").set_value(["h2o"])
    app.checkbox(key="sweep_needle").check()
    app.checkbox(key="sweep_probes").check()
    app = ended(press(app, "quality_sweep"), owner)
    assert [item.report.name for item in owner.quality.results()] == [CURRENT, "int8", "h2o 96"]
    box = next(box for box in app.selectbox if str(box.key).startswith(PICK_KEY))
    app = checked(box.select("int8").run())
    assert "Would change: K format int8, V format int8." in words(app)
    assert "Inside int8" in words(app) and "Needle" in words(app)
    app = press(app, "quality_apply")
    assert owner.client.snapshot().settings["cache.k_format"] == "int8"
    assert "The engine runs this setting." in words(app)
    assert "The settings have changed since" in words(app)
    assert "took" in words(app)
    from app.panels.engine import get_engine

    get_engine().history.undo()
    assert owner.client.snapshot().settings["cache.k_format"] == "bf16"


def test_a_sweep_of_sparse_reads_stores_all_and_reads_less(
    owner: engine_owner.EngineOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engine_owner.RANDOM_LAYERS_VARIABLE, "3")  # two layers are always read whole
    app = press(opened(), "sweep_none")
    pills = app.button_group(key="sweep_sparse")
    assert pills.options == ["Quest 1/8", "Quest 1/4", "landmarks 1/8", "landmarks 1/4"]
    pills.set_value(["quest 1/8", "landmarks 1/4"])
    app = ended(press(app, "quality_sweep"), owner)
    found = [owner.quality.result(name) for name in ("quest 1/8", "landmarks 1/4")]
    assert all(item is not None and item.final for item in found)
    eighth, quarter = (item.report for item in found if item is not None)
    assert eighth.bytes.per_token == quarter.bytes.per_token and eighth.bytes.ratio_to_bf16 <= 1
    read = [report.bytes.read_per_token / report.bytes.allocated for report in (eighth, quarter)]
    assert read[0] < 1 and read[1] < 1 and min(eighth.kl_mean, quarter.kl_mean) > 0
    box = next(box for box in app.selectbox if str(box.key).startswith(PICK_KEY))
    app = checked(box.select("quest 1/8").run())
    assert "Would change: sparse reads Quest" in words(app)
    told = "".join(item.proto.body for item in app.get("html"))
    assert "read a token" in told and "% of what is stored" in told


def test_only_the_driver_measures(owner: engine_owner.EngineOwner) -> None:
    app = opened()
    owner.driver.connected("elsewhere")
    owner.driver.take_over("elsewhere")
    app.session_state["tab_state"].tab = "here"
    app = checked(app.run())
    for key in ("quality_measure", "quality_sweep"):
        assert app.button(key=key).disabled
    app = press(app, "take_over")
    assert not app.button(key="quality_measure").disabled
    owner.driver.disconnected("elsewhere")


def test_forgetting_all_empties_the_page(owner: engine_owner.EngineOwner) -> None:
    app = press(opened(), "quality_clear")
    assert "No setting has been measured yet" in words(app)
