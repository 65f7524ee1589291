"""Each native control of the page on a real engine process, without a browser."""

import os
import signal
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import engine_owner
from app.panels.history import History
from tests.interface.dashboard import ROOT, wait_for
from workbench.clock import ManualClock
from workbench.config import EngineConfig, all_settings, replace_settings
from workbench.errors import SettingError


@pytest.fixture
def app(owner: engine_owner.EngineOwner) -> AppTest:
    test = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    return checked(test.run())


def checked(app: AppTest) -> AppTest:
    """No script may raise."""
    assert [error.message for error in app.exception] == []
    return app


def knob(app: AppTest, kind: str, path: str) -> Any:
    """The widget of a setting, whatever its epoch."""
    start = f"knob_{path.replace('.', '_')}__"
    return next(widget for widget in getattr(app, kind) if str(widget.key).startswith(start))


def answer(app: AppTest) -> str:
    """The sentence in the answer's place."""
    return str(app.caption[0].value).replace("\\", "")


def button(app: AppTest, key: str) -> AppTest:
    """Press a button and run."""
    return checked(app.button(key=key).click().run())


def other_value(path: str) -> Any:
    """A valid value that is not the default, mild enough for a running engine."""
    item = all_settings()[path]
    if isinstance(item.default, bool):
        return not item.default
    if item.metadata["choices"]:
        return next((c for c in item.metadata["choices"] if c != item.default), None)
    return type(item.default)(item.metadata["low"] + 8 if not item.default else item.default / 2)


def stands_alone(path: str) -> bool:
    """Whether a setting can be changed without another one."""
    try:
        replace_settings(EngineConfig(), {path: other_value(path)})
    except SettingError:
        return False
    return True


HOT = [
    path for path, item in all_settings().items()
    if item.metadata["change"] == "hot" and item.metadata["dim"] != "-"
    and path != "tiers.disk_path" and other_value(path) is not None and stands_alone(path)
]  # fmt: skip


def test_hot_knobs_apply_at_once(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    for path in HOT:
        item, value = all_settings()[path], other_value(path)
        if isinstance(item.default, bool):
            widget = knob(app, "toggle", path).set_value(value)
        elif item.metadata["choices"]:
            widget = knob(app, "selectbox", path).set_value(value)
        elif item.metadata["main"]:
            widget = knob(app, "select_slider", path).set_value(value)
        else:
            widget = knob(app, "number_input", path).set_value(value)
        app = checked(widget.run())
        assert "took" in answer(app), (path, answer(app))
        assert owner.client.snapshot().settings[path] == value, path
        assert path in app.query_params
    while owner_history(owner).can_undo:
        owner_history(owner).undo()
    settings = owner.client.snapshot().settings
    assert [path for path in HOT if settings[path] != all_settings()[path].default] == []


def owner_history(owner: engine_owner.EngineOwner) -> Any:
    """The history that the page's sessions share."""
    from app.panels.engine import get_engine

    return get_engine().history


def test_a_format_waits_for_apply(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    app = checked(knob(app, "selectbox", "cache.k_format").set_value("int8").run())
    assert "Waiting for Apply: K format int8" in answer(app) and "re-encoded" in answer(app)
    assert owner.client.snapshot().settings["cache.k_format"] == "bf16"
    app = button(app, "discard")
    assert knob(app, "selectbox", "cache.k_format").value == "bf16"
    app = checked(knob(app, "selectbox", "cache.k_format").set_value("int8").run())
    app = button(app, "apply")
    assert "K format int8" in answer(app) and "took" in answer(app)
    assert owner.client.snapshot().settings["cache.k_format"] == "int8"
    owner_history(owner).undo()


def test_the_three_buttons(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    app = button(app, "quick_int8")
    assert "split in two" in answer(app)
    app = button(app, "quick_int8")
    assert "int8 already" in answer(app)
    app = button(app, "quick_dram")
    assert "Watch G2" in answer(app)
    app = button(app, "quick_dram")
    assert "DRAM tier of 64 MiB already" in answer(app)
    app = button(app, "quick_fill")
    assert "24 requests are on their way" in answer(app)
    history = owner_history(owner)
    filled = history.last.request_ids
    for _ in range(3):
        history.undo()
    settings = owner.client.snapshot().settings
    assert settings["cache.k_format"] == "bf16" and settings["tiers.dram_mib"] == 0
    running = {r.request_id: r.status for r in owner.client.snapshot().requests}
    assert all(running.get(i, "finished").startswith("finished") for i in filled)


def test_what_the_engine_refuses_is_told_in_one_sentence(app: AppTest) -> None:
    app.selectbox(key="preset").set_value("long_document")
    app = button(app, "run_preset")
    told = answer(app)
    assert "The prompt has" in told and "shorten it or raise" in told
    assert "warning" in told and told.count(". ") == 0


def test_two_tabs_changing_at_once(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    other = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60).run()
    checked(knob(app, "select_slider", "scheduling.token_budget").set_value(128).run())
    knob(other, "select_slider", "scheduling.token_budget").set_value(64)
    other = checked(other.run())
    assert "budget was not applied: another tab changed a setting first" in answer(other)
    assert knob(other, "select_slider", "scheduling.token_budget").value == 128
    owner_history(owner).undo()


def test_only_the_driver_changes(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    owner.driver.connected("elsewhere")
    owner.driver.take_over("elsewhere")
    app.session_state["tab_state"].tab = "here"
    app = checked(app.run())
    assert knob(app, "selectbox", "scheduling.order").disabled
    assert app.button(key="apply").disabled
    app = button(app, "take_over")
    assert owner.driver.driver == "here"
    assert not knob(app, "selectbox", "scheduling.order").disabled
    owner.driver.disconnected("elsewhere")


def test_links(owner: engine_owner.EngineOwner) -> None:
    app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    app.query_params["tiers.dram_mib"] = "32"
    app.query_params["cache.nothing"] = "1"
    app = checked(app.run())
    assert "unknown setting 'cache.nothing'" in app.warning[0].value.replace("\\", "")
    assert owner.client.snapshot().settings["tiers.dram_mib"] == 0
    app = button(app, "offer_keep")
    assert not app.warning and "tiers.dram_mib" not in app.query_params


def test_workload_preset_and_clear(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    app.selectbox(key="preset").set_value("multi_turn")
    app = button(app, "run_preset")
    assert "requests started" in answer(app)
    app = button(app, "clear_requests")
    live = [r for r in owner.client.snapshot().requests if not r.status.startswith("finished")]
    assert live == []


def test_undo_stops_what_a_preset_still_has_to_come(
    app: AppTest, owner: engine_owner.EngineOwner
) -> None:
    app.selectbox(key="preset").set_value("many_short")
    app = button(app, "run_preset")
    assert "the first of 48 requests started, the others follow" in answer(app)
    name = owner_history(owner).last.workload
    # the journal follows the engine's announcements, a moment after the answer
    wait_for(lambda: name in owner.client.journal.workloads, 20, lambda: "not announced")
    owner_history(owner).undo()
    wait_for(lambda: name not in owner.client.journal.workloads, 20, lambda: "still to come")
    live = [e for e in owner.client.journal.unfinished() if e.workload == name]
    assert live == []
    owner_history(owner).redo()
    wait_for(lambda: name in owner.client.journal.workloads, 20, lambda: "not announced again")
    owner_history(owner).undo()


def test_changes_within_half_a_second_are_one_undo(owner: engine_owner.EngineOwner) -> None:
    clock = ManualClock()
    history = History(owner.client, owner.client.config, clock)
    path, before = "scheduling.token_budget", owner.client.config.scheduling.token_budget
    for wait_s, value in ((0.0, 128), (0.5, 64), (0.6, 32)):
        clock.advance(wait_s)
        history.apply({path: value}, history.version)
    assert [entry.changes[path] for entry in history.marks()] == [64, 32]
    history.undo()
    assert owner.client.snapshot().settings[path] == 64
    history.undo()
    assert owner.client.snapshot().settings[path] == before


def test_chat_and_refused_chat(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    app = checked(app.chat_input[0].set_value("Hello").run())
    assert "joined the batch" in answer(app)
    app = button(app, "new_chat")
    app = checked(app.chat_input[0].set_value("x" * 7900).run())
    assert "Not sent" in answer(app) and "tokens" in answer(app)


def test_a_second_engine_on_the_machine_is_told(
    owner: engine_owner.EngineOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "notice", "Another dashboard (process 7) runs an engine.")
    app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    assert "Another dashboard (process 7)" in answer(checked(app.run()))


def test_copy_opens_the_dialog(app: AppTest) -> None:
    app = button(app, "copy")
    assert any("vllm serve MODEL" in block.value for block in app.code)
    assert any("sglang.launch_server" in block.value for block in app.code)


def test_a_dead_engine_is_told_and_restarts(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    os.kill(owner.client.pid, signal.SIGKILL)
    wait_for(lambda: owner.client.state == "dead", 20, lambda: "still alive")
    app = checked(app.run())
    assert any("The engine stopped" in text.value for text in app.markdown)
    assert knob(app, "selectbox", "scheduling.order").disabled
    app = button(app, "restart")
    owner.client.wait_ready(60)
    app = checked(app.run())
    assert not knob(app, "selectbox", "scheduling.order").disabled
