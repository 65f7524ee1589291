"""Each native control of the page but the knobs on a real engine process, without a browser."""

import json
import os
import signal

import pytest
from streamlit.testing.v1 import AppTest

from app import engine_owner
from app.panels.history import History
from tests.interface.dashboard import wait_for
from tests.interface.dashboard_page import (
    answer,
    button,
    checked,
    knob,
    new_page,
    shared_history,
    turn,
)
from workbench.clock import ManualClock
from workbench.lab.workloads import PRESETS
from workbench.snapshot import RequestView

LONG = "long_document"  # does not fit the test's model


@pytest.fixture
def app(owner: engine_owner.EngineOwner) -> AppTest:
    return checked(new_page().run())


def unfinished(owner: engine_owner.EngineOwner) -> list[RequestView]:
    return [r for r in owner.client.snapshot().requests if not r.status.startswith("finished")]


def test_a_format_waits_for_apply(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    app = turn(app, "cache.k_format", "int8")
    assert "Waiting for Apply: K format int8" in answer(app) and "re-encoded" in answer(app)
    assert owner.client.snapshot().settings["cache.k_format"] == "bf16"
    app = button(app, "discard")
    assert knob(app, "cache.k_format").value == "bf16"
    app = turn(app, "cache.k_format", "int8")
    app = button(app, "apply")
    assert "K format int8" in answer(app) and "took" in answer(app)
    assert owner.client.snapshot().settings["cache.k_format"] == "int8"
    shared_history().undo()


def test_the_three_buttons(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    app = button(app, "quick_int8")
    assert "split in two" in answer(app)
    settings = owner.client.snapshot().settings
    assert settings["cache.k_format"] == settings["cache.v_format"] == "int8"
    app = button(app, "quick_int8")
    assert "int8 already" in answer(app)
    app = button(app, "quick_dram")
    assert "Watch G2" in answer(app)
    assert owner.client.snapshot().settings["tiers.dram_mib"] == 64
    app = button(app, "quick_dram")
    assert "DRAM tier of 64 MiB already" in answer(app)
    app = button(app, "quick_fill")
    assert "24 requests are on their way" in answer(app)
    history = shared_history()
    filled = history.last.request_ids
    for _ in range(3):
        history.undo()
    settings = owner.client.snapshot().settings
    assert settings["cache.k_format"] == "bf16" and settings["tiers.dram_mib"] == 0
    running = {r.request_id: r.status for r in owner.client.snapshot().requests}
    assert all(running.get(i, "finished").startswith("finished") for i in filled)


def test_what_the_engine_refuses_is_told_in_one_sentence(
    app: AppTest, owner: engine_owner.EngineOwner
) -> None:
    before, settings = shared_history().last, owner.client.snapshot().settings
    app.selectbox(key="preset").set_value(LONG)
    app = button(app, "run_preset")
    assert shared_history().last is before and owner.client.snapshot().settings == settings
    told = answer(app)
    assert "The prompt has" in told and "shorten it or raise" in told
    assert "warning" in told and told.count(". ") == 0


def test_two_tabs_changing_at_once(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    other = new_page().run()
    turn(app, "scheduling.token_budget", 128)
    knob(other, "scheduling.token_budget").set_value(64)
    other = checked(other.run())
    assert "budget was not applied: another tab changed a setting first" in answer(other)
    assert knob(other, "scheduling.token_budget").value == 128
    shared_history().undo()


def test_only_the_driver_changes(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    owner.driver.connected("elsewhere")
    owner.driver.take_over("elsewhere")
    app.session_state["tab_state"].tab = "here"
    app = checked(app.run())
    assert knob(app, "scheduling.order").disabled
    assert app.button(key="apply").disabled
    app = button(app, "take_over")
    assert owner.driver.driver == "here"
    assert not knob(app, "scheduling.order").disabled
    owner.driver.disconnected("elsewhere")


def test_links(owner: engine_owner.EngineOwner) -> None:
    app = new_page()
    app.query_params["tiers.dram_mib"] = "32"
    app.query_params["cache.nothing"] = "1"
    app = checked(app.run())
    assert "unknown setting 'cache.nothing'" in app.warning[0].value.replace("\\", "")
    assert owner.client.snapshot().settings["tiers.dram_mib"] == 0
    app = button(app, "offer_keep")
    assert not app.warning and "tiers.dram_mib" not in app.query_params


def test_a_link_is_applied_as_one_change(owner: engine_owner.EngineOwner) -> None:
    before = owner.client.snapshot().settings
    wanted = {"cache.grouping": "layer", "cache.layer_plan": "0=int8"}
    app = new_page()
    for path, value in wanted.items():
        app.query_params[path] = value
    app = button(checked(app.run()), "offer_apply")
    assert "took" in answer(app)
    assert owner.client.snapshot().settings == before | wanted
    shared_history().undo()
    assert owner.client.snapshot().settings == before


def test_back_and_forward_are_undo_and_redo(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    def asked() -> tuple[str, int]:
        settings = owner.client.snapshot().settings
        return settings["scheduling.order"], settings["cache.block_size"]

    app = turn(app, "scheduling.order", "priority")
    app = button(turn(app, "cache.block_size", 8), "apply")
    assert asked() == ("priority", 8)
    del app.query_params["cache.block_size"]
    app = checked(app.run())
    assert asked() == ("priority", 16) and "Undone: block 16 tokens" in answer(app)
    assert knob(app, "cache.block_size").value == 16
    app.query_params["cache.block_size"] = "8"
    app = checked(app.run())
    assert asked() == ("priority", 8) and "Done again: block 8 tokens" in answer(app)
    assert knob(app, "cache.block_size").value == 8
    for path in ("cache.block_size", "scheduling.order"):
        del app.query_params[path]
        app = checked(app.run())
    assert asked() == ("fcfs", 16)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != LONG])
def test_each_preset_and_abort_all(
    name: str, app: AppTest, owner: engine_owner.EngineOwner
) -> None:
    app = button(app, "clear_requests")
    assert unfinished(owner) == []
    app.selectbox(key="preset").set_value(name)
    app = button(app, "run_preset")
    started = shared_history().last
    assert started is not None and started.request_ids
    assert answer(app) and not app.session_state["tab_state"].problem
    assert {r.request_id for r in unfinished(owner)} >= set(started.request_ids)
    button(app, "clear_requests")
    assert unfinished(owner) == []


def test_undo_stops_what_a_preset_still_has_to_come(
    app: AppTest, owner: engine_owner.EngineOwner
) -> None:
    app.selectbox(key="preset").set_value("many_short")
    app = button(app, "run_preset")
    assert "the first of 48 requests started, the others follow" in answer(app)
    name = shared_history().last.workload
    # the journal follows the engine's announcements, a moment after the answer
    wait_for(lambda: name in owner.client.journal.workloads, 20, lambda: "not announced")
    shared_history().undo()
    wait_for(lambda: name not in owner.client.journal.workloads, 20, lambda: "still to come")
    live = [e for e in owner.client.journal.unfinished() if e.workload == name]
    assert live == []
    shared_history().redo()
    wait_for(lambda: name in owner.client.journal.workloads, 20, lambda: "not announced again")
    shared_history().undo()


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


def test_a_kept_chat_marks_its_blocks(app: AppTest, owner: engine_owner.EngineOwner) -> None:
    app.selectbox(key="keep_prompt").set_value("1h")
    app = checked(app.chat_input[0].set_value("Keep this").run())
    asked = app.session_state["tab_state"].selected_request
    (request,) = (r for r in owner.client.snapshot().requests if r.request_id == asked)
    assert [point.ttl for point in request.breakpoints] == ["1h"]


def test_a_file_of_prompts_runs_its_good_lines(
    app: AppTest, owner: engine_owner.EngineOwner
) -> None:
    lines = [json.dumps({"prompt": "one", "max_tokens": 4}), "{", '{"prompt": "two"}']
    app.file_uploader(key="jsonl").upload("prompts.jsonl", "\n".join(lines).encode())
    app = checked(app.run())
    told = [str(text.value).replace("\\", "") for text in app.caption]
    assert "2 of 3 lines can run." in told and any(t.startswith("Line 2") for t in told)
    app = button(app, "run_file")
    assert "2 requests started" in answer(app)
    started = shared_history().last
    assert started is not None and len(started.request_ids) == 2
    shared_history().undo()
    assert not {r.request_id for r in unfinished(owner)} & set(started.request_ids)


def test_a_second_engine_on_the_machine_is_told(
    owner: engine_owner.EngineOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "notice", "Another dashboard (process 7) runs an engine.")
    app = new_page()
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
    assert knob(app, "scheduling.order").disabled
    app = button(app, "restart")
    owner.client.wait_ready(60)
    app = checked(app.run())
    assert not knob(app, "scheduling.order").disabled
