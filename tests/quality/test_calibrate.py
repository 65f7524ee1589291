"""Plans of formats by layer: the knapsack is exact, the budget holds, the result can be applied."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cli import main
from workbench.engine.engine import Engine
from workbench.errors import SettingError
from workbench.layer_plan import parse_plan
from workbench.model.random_launch import random_model
from workbench.quality.calibrate import calibrate, choose, format_bits
from workbench.quality.engines import lab_config
from workbench.quality.plan import QualityPlan
from workbench.settings.formats import KV_FORMATS

PLAN = QualityPlan(context=48, scored=24, num_windows=1, context_chunk=16, scored_chunk=8)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4),
    st.lists(st.sampled_from([2.5, 4.5, 8.25, 16.0]), min_size=1, max_size=3, unique=True),
    st.data(),
)
def test_no_choice_within_the_budget_is_better(
    layers: int, sizes: list[float], data: st.DataObject
) -> None:
    bits = np.array(sizes)
    prices = np.array(
        data.draw(
            st.lists(
                st.lists(st.floats(0, 1), min_size=len(bits), max_size=len(bits)),
                min_size=layers, max_size=layers,
            )
        )
    )  # fmt: skip
    budget = data.draw(st.floats(bits.min(), 16.0))
    chosen = choose(prices, bits, budget)
    assert bits[chosen].mean() <= budget + 1e-6
    cost = prices[np.arange(layers), chosen].sum()
    for other in itertools.product(range(len(bits)), repeat=layers):
        if bits[list(other)].mean() <= budget - 1e-6:
            assert cost <= prices[np.arange(layers), list(other)].sum() + 1e-9


def test_a_plan_is_measured_and_can_be_applied() -> None:
    model = random_model(2)
    formats = (("int8", "int8"), ("int4", "int4"))
    sizes = [format_bits(model, each) for each in formats]
    found = calibrate(model, float(np.mean(sizes)), formats, PLAN)
    assert found.prices.shape == (2, 2) and (found.prices >= 0).all()
    assert found.bits <= np.mean(sizes) + 1e-6
    assert parse_plan(found.text, KV_FORMATS).keys() == {0, 1}
    assert found.plan.changes["cache.layer_plan"] == found.text
    assert [each.name for each in found.uniform] == ["int8", "int4"]
    assert found.uniform[0].kl_mean <= found.uniform[1].kl_mean
    engine = Engine(lab_config(model, found.plan.changes, 64), model)
    assert {spec.label for spec in engine.stack.specs.full} <= {"int8", "int4"}
    engine.close()


def test_a_budget_below_every_format_is_refused() -> None:
    with pytest.raises(SettingError, match="a budget of 1 bits is below the smallest"):
        calibrate(random_model(2), 1.0, (("int8", "int8"),), PLAN)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(SettingError, match="'int7' is no format: choose one of bf16"):
        calibrate(random_model(2), 8.0, (("int7", "int7"),), PLAN)


def test_the_command_refuses_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["calibrate", "plan", "--formats", "int9"])
    assert stop.value.code == 2
    assert "'int9' is no format" in capsys.readouterr().err


@pytest.mark.long
def test_the_real_model_within_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    with pytest.raises(SystemExit) as stop:
        main(["calibrate", "plan", "--bits", "6.5", "--formats", "int8,int4", "--context", "128",
              "--scored", "64", "--windows", "1", "--out", str(out), "--json"])  # fmt: skip
    assert stop.value.code == 0
    figures = {
        each["name"]: each["value"] for each in json.loads(capsys.readouterr().out)["figures"]
    }
    assert figures["plan_bits"] <= 6.5
    assert figures["plan_kl"] < figures["uniform_kl_int4"]
    assert "cache.layer_plan" in json.loads(out.read_text())[0]
