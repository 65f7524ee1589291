"""Links and flags say exactly what the settings are, or that there is no counterpart."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from app.panels.export import SGLANG, VLLM, command, export_all, python_snippet
from app.panels.knobs import slider_steps
from app.panels.link import (
    LOCAL_SETTINGS,
    OWN_CALIBRATIONS,
    link_address,
    link_changes,
    link_params,
    read_link,
)
from app.text import load_texts
from workbench.config import EngineConfig, all_settings, replace_settings
from workbench.engine import calibrating
from workbench.errors import SettingError

TEXTS = load_texts()


def changed(changes: dict[str, Any]) -> EngineConfig:
    return replace_settings(EngineConfig(), changes)


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """Valid changes of some settings."""
    paths = draw(st.lists(st.sampled_from(sorted(set(all_settings()) - set(LOCAL_SETTINGS)))))
    changes: dict[str, Any] = {}
    for path in paths:
        item = all_settings()[path]
        if item.metadata["choices"]:
            changes[path] = draw(st.sampled_from(item.metadata["choices"]))
        elif isinstance(item.default, bool):
            changes[path] = draw(st.booleans())
        elif path == "cache.calibration":
            changes[path] = draw(st.sampled_from([*OWN_CALIBRATIONS, "own.safetensors"]))
        elif path == "cache.rank_plan":
            changes[path] = draw(st.sampled_from(["", "0-1=48; 2=16"]))
        elif path == "cache.layer_plan":
            changes[path] = draw(st.sampled_from(["", "0-1=bf16", "0=fp8_e4m3/int8; 4-9=int4"]))
        else:
            low, high = item.metadata["low"], item.metadata["high"]
            number = draw(st.integers(int(-(-low // 1)), int(high)))
            changes[path] = type(item.default)(number)
    return changes


@given(settings())
def test_a_link_carries_every_setting(changes: dict[str, Any]) -> None:
    try:
        config = changed(changes)
    except SettingError:
        reject()  # settings that exclude each other
    content = read_link(link_params(config))
    assert content.error == ""
    if config.cache.calibration in OWN_CALIBRATIONS:
        assert changed(content.changes) == config
    assert link_changes(content, config) == {}


def test_defaults_need_no_link() -> None:
    assert link_params(EngineConfig()) == {}
    assert link_address("http://localhost:8501/?old=1", EngineConfig()) == "http://localhost:8501/"


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"cache.kformat": "int8"}, "unknown setting 'cache.kformat'"),
        ({"cache.k_format": "int99"}, "cache.k_format = 'int99' is not allowed"),
        ({"cache.hbm_budget_mib": "lots"}, "cache.hbm_budget_mib = 'lots' is not allowed"),
        ({"cache.hbm_budget_mib": "nan"}, "cache.hbm_budget_mib = nan is out of range"),
        ({"cache.block_size": "7"}, "cache.block_size = 7 is not allowed"),
        ({"model.path": "/etc"}, "model.path belongs to a machine"),
    ],
)
def test_a_bad_setting_is_named_and_the_others_stand(params: dict[str, str], sentence: str) -> None:
    content = read_link({**params, "tiers.dram_mib": "64"})
    assert sentence in content.error
    assert content.changes == {"tiers.dram_mib": 64.0}


def test_the_models_own_calibration_is_carried_and_a_file_is_not() -> None:
    assert OWN_CALIBRATIONS == calibrating.OWN
    every, file = (changed({"cache.calibration": to}) for to in ("all", "/own.safetensors"))
    assert link_params(every) == {"cache.calibration": "all"} and link_params(file) == {}
    assert link_changes(read_link({"cache.calibration": "all"}), EngineConfig()) == {
        "cache.calibration": "all"
    }
    assert link_changes(read_link({}), every) == {"cache.calibration": "needed"}
    assert link_changes(read_link({"cache.k_format": "int8"}), file) == {"cache.k_format": "int8"}
    assert "belongs to a machine" in read_link({"cache.calibration": "/own.safetensors"}).error


def test_python_snippet_builds_the_same_config() -> None:
    config = changed({"cache.k_format": "int8", "tiers.dram_mib": 64, "tiers.gate": False})
    names: dict[str, Any] = {}
    exec(python_snippet(config), names)
    assert names["config"] == config


def test_flags() -> None:
    config = changed({
        "cache.k_format": "int8", "cache.v_format": "int8", "tiers.dram_mib": 512,
        "scheduling.order": "longest-prefix-first", "retention.policy": "sink+window",
    })  # fmt: skip
    vllm, sglang = command(TEXTS, config, VLLM), command(TEXTS, config, SGLANG)
    assert "--kv-cache-memory-bytes 67108864" in vllm
    assert "--kv-cache-dtype int8_per_token_head" in vllm
    assert "--kv-offloading-backend native --kv-offloading-size 0.5" in vllm
    assert "# order longest prefix: no counterpart" in vllm
    assert "# retention sink + window: no counterpart" in vllm
    assert "--schedule-policy lpm" in sglang
    assert "# K format int8: no counterpart" in sglang
    assert "# DRAM 512 MiB: no counterpart" in sglang
    assert "--page-size 16" in sglang


def test_different_formats_for_k_and_v_have_no_counterpart() -> None:
    config = changed({"cache.k_format": "fp8_e4m3"})
    assert "# K format fp8 e4m3: no counterpart" in command(TEXTS, config, VLLM)


def test_every_setting_is_a_flag_or_named() -> None:
    other = {
        path: next(c for c in item.metadata["choices"] if c != item.default)
        for path, item in all_settings().items() if item.metadata["choices"][1:]
    }  # fmt: skip
    config = EngineConfig()
    for path, value in other.items():
        with contextlib.suppress(SettingError):  # another one excludes it
            config = replace_settings(config, {path: value})
    exports = export_all(TEXTS, config, "link")
    assert set(exports) == {"link", "python", "vllm", "sglang"}
    assert exports["vllm"].count("no counterpart") >= 5


def test_slider_stops() -> None:
    assert slider_steps("tiers.dram_mib")[:3] == [0.0, 8.0, 16.0]
    assert 33.5 in slider_steps("cache.hbm_budget_mib", 33.5)
    for path, item in all_settings().items():
        if item.metadata["main"] and not item.metadata["choices"]:
            assert item.default in slider_steps(path, item.default)
            assert len(slider_steps(path)) >= 8
