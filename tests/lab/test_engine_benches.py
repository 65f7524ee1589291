"""The benches of the engine at tiny sizes: real runs, the names that docs/benchmarks.md knows."""

import pytest

from workbench.lab import capacity_bench, decode_bench, model_bench, prefix_bench
from workbench.lab.bench_runs import bench_engine, bench_model, random_prompts, timed_run
from workbench.lab.capacity_bench import CapacityPlan, admit
from workbench.lab.decode_bench import DecodePlan
from workbench.lab.figures import Figure, report, to_json
from workbench.lab.model_bench import ModelPlan
from workbench.lab.prefix_bench import PrefixPlan

LAYERS = 2


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    assert to_json(report(figures))  # names are good and come once
    return {figure.name: figure for figure in figures}


def test_decode_figures() -> None:
    told: list[str] = []
    plan = DecodePlan(
        weight_formats=("bf16", "fp32"), batches=(1, 3), prompt_tokens=(8,), num_new=5, repeats=2,
        buffer_bytes=2**20, random_layers=LAYERS,
    )  # fmt: skip
    figures = by_name(decode_bench.measure(told.append, plan=plan))
    for name in ("decode_tok_per_s_bf16_b1_p8", "request_tok_per_s_fp32_b3_p8",
                 "memory_read_gb_per_s", "bandwidth_share_b1"):  # fmt: skip
        value = figures[name].value
        assert value is not None and value > 0
    assert "attention" in figures["decode_tok_per_s_bf16_b1_p8"].note
    assert "CPU" in figures["request_tok_per_s_bf16_b1_p8"].note
    assert told


def test_a_timed_run_counts_what_it_made() -> None:
    model = bench_model("bf16", LAYERS)
    engine = bench_engine(model, num_seqs=3, num_tokens=20)
    run = timed_run(engine, random_prompts(model.arch.vocab_size, 3, 12, 0), 8)
    engine.close()
    assert run.num_tokens == 24 and [len(tokens) for tokens in run.token_ids] == [8, 8, 8]
    assert run.decode_tokens == 21 and len(run.steps) == 7  # the first token came with the prompt
    assert 0 < run.decode_s < run.whole_s


def test_model_figures() -> None:
    plan = ModelPlan(num_tokens=40, num_starts=1, random_layers=LAYERS)
    figures = by_name(model_bench.measure(lambda text: None, plan=plan))
    names = ["kl_packed", "kl_int8", "kl_bf16", "second_start_s", "second_start_packed_s"]
    assert list(figures) == names
    assert figures["kl_packed"].value == 0  # the random model has one format
    assert "40 tokens, as_stored weights" in figures["kl_packed"].note
    assert 0 < figures["second_start_s"].value < 60  # type: ignore[operator]


def test_prefix_figures() -> None:
    plan = PrefixPlan(prompt_tokens=64, num_new=3, repeats=2, random_layers=LAYERS)
    figures = by_name(prefix_bench.measure(lambda text: None, plan=plan))
    for name in ("prefix_hit_ttft_steps", "prefix_ttft_ratio", "prefill_tok_per_s"):
        value = figures[name].value
        assert value is not None and value > 0
    assert figures["prefix_hit_ttft_steps"].note.startswith("48 of 64 tokens hit")
    assert figures["prefix_hit_ttft_steps_partial"].note.startswith("63 of 64 tokens hit")


@pytest.fixture(scope="module")
def capacity() -> dict[str, Figure]:
    plan = CapacityPlan(
        budget_mib=1.0, num_seqs=2, context_tokens=16, num_steps=8, random_layers=LAYERS
    )
    return by_name(capacity_bench.measure(lambda text: None, plan=plan))


def test_capacity_figures(capacity: dict[str, Figure]) -> None:
    ratios = {name: capacity[f"capacity_ratio_{name}"].value for name in ("fp8", "int8", "int4")}
    assert all(ratios.values())
    # A head of 16 carries more scales a byte than the real model's 64.
    assert ratios["fp8"] >= 1.9 and ratios["int4"] > ratios["int8"] > 1.2  # type: ignore[operator]
    for name in ("fp8", "int8", "int4"):
        slowdown = capacity[f"decode_slowdown_{name}"].value
        assert slowdown is not None and slowdown > 0
    assert capacity["rss_error"].unit == "%"


@pytest.mark.parametrize(("budget_mib", "share"), [
    (16.0, 0.15), pytest.param(48.0, 0.05, marks=pytest.mark.long),
])  # fmt: skip
def test_resident_memory_grows_as_the_ledger_says(budget_mib: float, share: float) -> None:
    """What a process keeps besides is about 1.3 MiB, so 5 % is asked of a large arena."""
    result = admit("fp32", CapacityPlan(budget_mib=budget_mib, random_layers=24))
    assert result.written_bytes > 0.75 * budget_mib * 2**20
    assert abs(result.rss_growth_bytes / result.ledger_bytes - 1) < share
