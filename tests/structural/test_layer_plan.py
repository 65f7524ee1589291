"""Formats by layer: the text, the pages each layer gets, live changes, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, model, tokens
from workbench.config import EngineConfig, replace_settings
from workbench.engine.cache_stack import format_label, make_geometry
from workbench.engine.group_specs import group_specs
from workbench.errors import SettingError
from workbench.layer_plan import parse_plan, write_plan
from workbench.settings.formats import KV_FORMATS

formats = st.sampled_from(KV_FORMATS)


@given(st.dictionaries(st.integers(0, 40), st.tuples(formats, formats), max_size=12))
def test_a_plan_survives_its_text(plan: dict[int, tuple[str, str]]) -> None:
    assert parse_plan(write_plan(plan), KV_FORMATS) == plan


def test_ranges_lists_and_both_planes() -> None:
    plan = parse_plan(" 0-1, 28-29 = bf16 ; 4 = int8 / int4;", KV_FORMATS)
    assert plan == dict.fromkeys((0, 1, 28, 29), ("bf16", "bf16")) | {4: ("int8", "int4")}
    assert write_plan(plan) == "0-1,28-29=bf16; 4=int8/int4"


@pytest.mark.parametrize(
    "text, message",
    [
        ("bf16", "'bf16' is no entry: write"),
        ("0-=bf16", "is no entry"),
        ("3-1=bf16", "'3-1' is no range of layers"),
        ("0=int7", "'int7' is no format: choose one of bf16"),
        ("0=bf16; 0-2=int8", "names layer 0 twice"),
    ],
)
def test_a_wrong_plan_is_one_sentence(text: str, message: str) -> None:
    changes = {"cache.grouping": "layer", "cache.layer_plan": text}
    with pytest.raises(SettingError, match=message):
        replace_settings(EngineConfig(), changes)


def test_layers_that_share_pages_cannot_differ() -> None:
    with pytest.raises(SettingError, match="cache.grouping = model keeps them together"):
        replace_settings(EngineConfig(), {"cache.layer_plan": "0=int8"})
    runner = Runner(build({"cache.grouping": "layer"}))
    with pytest.raises(SettingError, match="names layer 7, but the model has 2"):
        runner.engine.apply({"cache.layer_plan": "7=int8"})
    assert runner.engine.config.cache.layer_plan == ""


@pytest.mark.parametrize("grouping", ["layer", "head"])
def test_each_layer_has_the_pages_of_its_formats(grouping: str) -> None:
    changes = {"cache.grouping": grouping, "cache.layer_plan": "1=kivi4/int8"}
    engine = build(changes)
    geometry = make_geometry(engine.config, model())
    specs = group_specs(geometry, engine.config, model())
    for group, full, unfilled in zip(geometry.groups, specs.full, specs.open, strict=True):
        if group.layers == (1,):
            assert (full.k_format, full.v_format) == ("kivi4", "int8")
            assert (unfilled.k_format, unfilled.v_format) == ("fp32", "fp32")
        else:
            assert full == unfilled and full.k_format == "fp32"
    assert format_label(engine.config) == f"fp32@{grouping}[1=kivi4/int8]"


@pytest.mark.parametrize("plan", ["", "0=bf16", "1=int8/int4", "0=kivi4; 1=int8"])
def test_plans_change_while_requests_run(plan: str) -> None:
    runner = Runner(build({"cache.grouping": "layer", "cache.hbm_budget_mib": 0.5,
                           "cache.layer_plan": plan}))  # fmt: skip
    ids = [runner.add(tokens(30, seed), 40) for seed in range(3)]
    for following in ("1=fp8_e4m3", "0=kivi2", ""):
        runner.step(8)
        report = runner.engine.apply({"cache.layer_plan": following})
        assert report.kinds == {"cache.layer_plan": "recode"} and report.num_recoded_blocks > 0
        runner.check()
    runner.drain()
    assert all(len(runner.outputs[request_id]) == 40 for request_id in ids)


def test_a_plan_of_the_full_format_changes_no_token() -> None:
    prompt = tokens(30)
    plain = Runner(build({"cache.grouping": "layer"})).one(prompt, 20)
    planned = {"cache.grouping": "layer", "cache.layer_plan": "0-1=fp32", "cache.k_format": "int8"}
    assert Runner(build(planned)).one(prompt, 20) == plain


def test_layers_that_do_not_seal_hold_no_spare_pages() -> None:
    runner = Runner(build({"cache.grouping": "layer", "cache.layer_plan": "1=kivi4"}))
    request_id = runner.add(tokens(20), 30)
    runner.step(20)
    assert runner.engine.stack.manager.requests[request_id].spares == [[], []]
    runner.drain()
