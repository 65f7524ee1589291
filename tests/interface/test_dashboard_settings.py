"""Every setting through its own control on a real engine process: taken over, or refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from streamlit.testing.v1 import AppTest

from app import engine_owner
from app.driver import Driver
from app.engine_owner import EngineOwner
from app.panels.link import LOCAL_SETTINGS
from tests.interface.dashboard_page import (
    answer,
    button,
    checked,
    knob,
    knobs,
    new_page,
    shared_history,
    turn,
)
from tests.model.tiny_folders import tiny_tokenizer, write_case
from workbench.client import EngineClient
from workbench.config import EngineConfig, ModelSettings, all_settings, replace_settings
from workbench.errors import SettingError
from workbench.request import RequestSpec, SamplingParams

CASES = ("llama_gqa_untied", "qwen2_bias_tied")
NO_CONTROL: dict[str, str] = {}  # path -> why the dashboard cannot change it
ONE_VALUE: dict[str, str] = {}  # path -> why there is nothing to choose

FOLDER, FILE = "<folder>", "<file>"  # filled in by the test
VALUES: dict[str, Any] = {
    "model.path": FOLDER,
    "model.max_model_len": 4096,
    "model.num_threads": 1,
    "cache.layer_plan": "0=int8",
    "cache.rank_plan": "0=8",
    "cache.rank_heads": 3,
    "cache.calibration": "all",
    "tiers.disk_path": FOLDER,
    "tiers.shared_address": "ipc:///tmp/nobody/store",
    "tiers.object_url": FOLDER,
}
BEFORE: dict[str, dict[str, Any]] = {  # what a setting needs besides
    "cache.layer_plan": {"cache.grouping": "layer"},
    "cache.rank_plan": {"cache.grouping": "layer"},
    "cache.values": {"tiers.dram_mib": 64.0},
    "tiers.disk_keep": {"tiers.disk_path": FOLDER},
    "retention.split": {"cache.grouping": "head"},
    "retention.merge": {"cache.grouping": "head", "retention.level": "token"},
}
# Settings before, the control and the refused value, and what the sentence has to name.
REFUSED: list[tuple[dict[str, Any], str, Any, str]] = [
    ({}, "model.max_model_len", 16, "is shorter than request"),
    ({}, "cache.hbm_budget_mib", 0.25, "too small for request"),
    ({}, "cache.layer_plan", "0=int8", "cache.grouping = model"),
    ({}, "cache.layer_plan", "0=int9", "'int9' is no format"),
    ({}, "cache.layer_plan", "first", "'first' is no entry"),
    ({}, "cache.rank_plan", "0=8", "cache.grouping = model"),
    ({}, "cache.rank_plan", "0=all", "'0=all' is no entry"),
    ({}, "cache.calibration", FILE, FILE),
    ({"cache.k_format": "kivi4"}, "cache.kivi_group", 64, "cache.block_size = 16"),
    ({"cache.k_format": "kivi4"}, "cache.mode", "off", "Format kivi4"),
    ({"cache.residual_tokens": 16}, "cache.allocation", "contiguous", "cache.residual_tokens = 16"),
    ({"retention.level": "token"}, "cache.k_format", "kivi2", "retention.level cannot be token"),
    ({"cache.grouping": "layer", "retention.split": "pyramid"}, "cache.grouping", "model",
     "retention.split = pyramid"),
    ({}, "retention.split", "ada", "cache.grouping = model"),
    ({}, "retention.merge", "nearest", "retention.level = page"),
    ({"retention.positions": "compact"}, "retention.sparse", "quest", "retention.positions"),
    ({"cache.k_format": "int8"}, "tiers.disk_codec", "cachegen", "the cache has int8"),
    ({"tiers.disk_mib": 8.0}, "tiers.disk_path", FILE, FILE),
    ({}, "tiers.shared", "mooncake", "Mooncake is not installed"),
    ({"tiers.disk_mib": 8.0}, "tiers.disk_transport", "nixl", "NIXL is not installed"),
    ({"tiers.shared": "store"}, "tiers.shared_transport", "nixl", "NIXL is not installed"),
    ({"tiers.object_url": FOLDER}, "tiers.object_transport", "nixl", "not files of a folder"),
    ({"tiers.disk_codec": "planes+zstd"}, "tiers.disk_layout", "layer_first", "into one blob"),
    ({}, "tiers.disk_keep", True, "tiers.disk_path is empty"),
    ({}, "tiers.object_url", "s3://me:secret@bucket/x", "no user or password"),
    ({}, "tiers.object_url", "ftp://bucket", "give /folder"),
]  # fmt: skip


@pytest.fixture(scope="module")
def tab(owner: engine_owner.EngineOwner) -> AppTest:
    """One tab for all tests: drawing it again takes a quarter of the time of a new one."""
    return new_page()


@pytest.fixture
def app(tab: AppTest) -> AppTest:
    """The tab as it follows the engine, without a waiting change."""
    app = checked(tab.run())
    return button(app, "discard") if app.session_state["tab_state"].pending else app


@pytest.fixture
def before(owner: engine_owner.EngineOwner) -> Iterator[dict[str, Any]]:
    """The engine's settings, which it has again afterwards by undo alone."""
    settings = owner.client.snapshot().settings
    yield settings
    while shared_history().can_undo:
        shared_history().undo()
    assert owner.client.snapshot().settings == settings


@pytest.fixture
def long_request(owner: engine_owner.EngineOwner) -> Iterator[None]:
    """A request that needs 1800 tokens' pages, and has not ended yet."""
    sampling = SamplingParams(max_tokens=300, ignore_eos=True)
    request_id = owner.client.submit(RequestSpec(token_ids=[7] * 1500, sampling=sampling))
    yield
    owner.client.abort(request_id)


def prepared(app: AppTest, changes: dict[str, Any]) -> AppTest:
    """The tab after another one made some changes."""
    if not changes:
        return app
    shared_history().apply(changes, shared_history().version)
    return checked(app.run())


def other_value(path: str) -> Any:
    """A legal value that is not the default, mild enough for a running engine."""
    item = all_settings()[path]
    if path in VALUES:
        return VALUES[path]
    if isinstance(item.default, bool):
        return not item.default
    if item.metadata["choices"]:
        return next(choice for choice in item.metadata["choices"] if is_other(path, choice))
    low = item.metadata["low"]
    return type(item.default)(item.default / 2 if item.default > 0 else max(low, 0) + 8)


def is_other(path: str, choice: Any) -> bool:
    try:
        config = replace_settings(EngineConfig(), {**BEFORE.get(path, {}), path: choice})
    except SettingError:
        return False
    return config != replace_settings(EngineConfig(), BEFORE.get(path, {}))


def filled(value: Any, folder: Path) -> Any:
    """A path on this machine instead of its place holder."""
    if value == FILE:
        (folder / "file").write_text("no folder")
        return str(folder / "file")
    return str(folder) if value == FOLDER else value


def test_every_setting_has_one_control(app: AppTest) -> None:
    assert {path for path in all_settings() if len(knobs(app, path)) != 1} == set(NO_CONTROL)
    only = {path for path in all_settings() if len(all_settings()[path].metadata["choices"]) == 1}
    assert only == set(ONE_VALUE)
    for path in only:
        assert knob(app, path).value == all_settings()[path].default


@pytest.mark.parametrize("path", sorted(set(all_settings()) - set(NO_CONTROL) - set(ONE_VALUE)))
def test_a_control_changes_its_setting(
    path: str, before: dict[str, Any], app: AppTest, owner: engine_owner.EngineOwner, tmp_path: Path
) -> None:  # fmt: skip
    needed = {name: filled(given, tmp_path) for name, given in BEFORE.get(path, {}).items()}
    value = filled(other_value(path), tmp_path)
    app = turn(prepared(app, needed), path, value)
    if all_settings()[path].metadata["change"] != "hot":
        assert answer(app).startswith("Waiting for Apply: ")
        assert owner.client.snapshot().settings == before | needed
        app = button(app, "apply")
    assert "took" in answer(app), answer(app)
    assert owner.client.snapshot().settings == before | needed | {path: value}
    assert knob(app, path).value == value
    assert (path in app.query_params) == (path not in LOCAL_SETTINGS)


@pytest.mark.usefixtures("long_request")
@pytest.mark.parametrize(
    "needed, path, value, named", REFUSED, ids=[f"{path}={value}" for _, path, value, _ in REFUSED]
)
def test_a_refused_value_changes_nothing(
    needed: dict[str, Any], path: str, value: Any, named: str,
    before: dict[str, Any], app: AppTest, owner: engine_owner.EngineOwner, tmp_path: Path,
) -> None:  # fmt: skip
    value, named = filled(value, tmp_path), filled(named, tmp_path)
    needed = {name: filled(given, tmp_path) for name, given in needed.items()}
    app = turn(prepared(app, needed), path, value)
    if all_settings()[path].metadata["change"] != "hot":
        is_one_clear_sentence(answer(app), named)  # before Apply is pressed
        app = button(app, "apply")
    is_one_clear_sentence(answer(app), named)
    assert owner.client.snapshot().settings == before | needed
    if path in app.session_state["tab_state"].pending:
        app = button(app, "discard")
    assert knob(app, path).value == (before | needed)[path]


@pytest.fixture
def loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[EngineClient, dict[str, Path]]]:
    """An engine that loads its weights from one of two folders, on the page."""
    folders = {case: write_case(tmp_path / case, case) for case in CASES}
    for folder in folders.values():
        (folder / "tokenizer.json").write_text(tiny_tokenizer())
        path = folder / "model.safetensors"
        halves = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
        save_file(halves, path, {"format": "pt"})
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path / "cache"))
    first = EngineConfig(model=ModelSettings(path=str(folders[CASES[0]]), max_model_len=64))
    client = EngineClient.start(first, wait=True)
    monkeypatch.setattr(engine_owner._HOLDER, "owner", EngineOwner(client, Driver()))
    yield client, folders
    client.close()


def test_the_model_and_its_weights(loaded: tuple[EngineClient, dict[str, Path]]) -> None:
    client, folders = loaded
    other = str(folders[CASES[1]])
    app = button(turn(checked(new_page().run()), "model.path", other), "apply")
    assert "took" in answer(app) and client.snapshot().model_name == CASES[1]
    num_bytes = client.snapshot().weight_bytes
    app = button(turn(app, "model.weight_format", "fp32"), "apply")
    assert "took" in answer(app)
    seen = client.snapshot()
    assert seen.weight_format == "fp32" and seen.weight_bytes > num_bytes
    assert not any("schedule" in str(caption.value) for caption in app.caption)
    app = button(turn(app, "model.weight_format", "auto"), "apply")
    assert client.snapshot().weight_format == "auto"
    app = checked(app.run())
    told = [str(caption.value) for caption in app.caption if "the schedule" in str(caption.value)]
    assert len(told) == 1 and "bf16 above, so tokens depend on the schedule." in told[0]
    app = button(turn(app, "model.weight_format", "fp32"), "apply")
    seen = client.snapshot()
    app = button(turn(app, "model.path", "/nowhere"), "apply")
    assert client.snapshot().settings == seen.settings and client.state == "running"
    is_one_clear_sentence(answer(app), "Model path /nowhere does not exist")


def is_one_clear_sentence(told: str, named: str) -> None:
    start, end = ":orange[:material/warning: ", "]"
    assert told.startswith(start) and told.endswith(end), told
    text = told.removeprefix(start).removesuffix(end)
    assert named in text and text.endswith(".") and ". " not in text, text
    begins_with_a_path = text.partition(" ")[0].rstrip(":") in all_settings()
    assert text[0].isupper() != begins_with_a_path and len(text) < 300, text
