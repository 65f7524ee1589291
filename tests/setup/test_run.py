"""`workbench run` on the real model: every request is served, stdout is one JSON object."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.lab.headless import Answer, request_figures
from workbench.model.fetch import cached_path


def test_a_file_of_prompts_is_served_to_its_end(tmp_path: Path) -> None:
    if cached_path() is None:
        pytest.skip("the model is not cached: workbench model fetch")
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "The capital of France is", "max_tokens": 6},
        {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 4},
        {"token_ids": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": True},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    done = subprocess.run(
        [str(Path(sys.executable).parent / "workbench"), "run", str(path), "--json", "--text",
         "--set", "model.num_threads=1", "--set", "cache.k_format=int8"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    figures = {item["name"]: item for item in shown["figures"]}
    assert figures["num_requests"]["value"] == 3
    assert figures["num_failed"]["value"] == figures["num_refused"]["value"] == 0
    assert 5 <= figures["num_output_tokens"]["value"] <= 15
    assert figures["ttft_p50_ms"]["value"] > 0 and figures["ttft_p50_ms"]["note"] == "n 3"
    assert "Paris" in done.stderr


def test_a_policy_of_ones_own_is_run_first(tmp_path: Path) -> None:
    if cached_path() is None:
        pytest.skip("the model is not cached: workbench model fetch")
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "The capital of France is", "max_tokens": 4}))
    example = Path(__file__).parents[2] / "docs" / "examples" / "placement_policy.py"
    command = [str(Path(sys.executable).parent / "workbench"), "run", str(path), "--json",
               "--set", "model.num_threads=1", "--set", "tiers.policy=beginnings"]  # fmt: skip
    named = [*command, "--policy", str(example)]
    done = subprocess.run(named, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures = {item["name"]: item["value"] for item in json.loads(done.stdout)["figures"]}
    assert figures["num_output_tokens"] >= 1 and figures["num_failed"] == 0
    alone = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert alone.returncode == 2 and "'beginnings' is no placement policy" in alone.stderr
    missing = [*command, "--policy", str(tmp_path / "nowhere.py")]
    refused = subprocess.run(missing, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "nowhere.py cannot be read" in refused.stderr


def test_a_budget_too_small_is_one_sentence(tmp_path: Path) -> None:
    if cached_path() is None:
        pytest.skip("the model is not cached: workbench model fetch")
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "word " * 400, "max_tokens": 4}))
    done = subprocess.run(
        [str(Path(sys.executable).parent / "workbench"), "run", str(path),
         "--set", "model.num_threads=1", "--set", "cache.hbm_budget_mib=0.5"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr


def test_figures_of_answers() -> None:
    answers = [
        Answer("a", 0.0, [0.1, 0.2, 0.4], 3, "abc", "finished_length"),
        Answer("b", 1.0, [1.3], 1, "d", "finished_stopped"),
        Answer("c", 2.0, [], 0, "", "finished_error", "too long"),
    ]
    figures = {f.name: f for f in request_figures(answers, num_refused=1, wall_s=2.0, cpu_s=1.0)}
    assert figures["num_output_tokens"].value == 4
    assert figures["output_tok_per_s"].value == 2.0
    assert figures["num_failed"].value == 1 and figures["num_failed"].note == "too long"
    assert figures["ttft_p50_ms"].value == pytest.approx(200.0)
    assert figures["itl_p50_ms"].value == pytest.approx(150.0)


def test_latency_without_a_sample_says_so() -> None:
    figures = {f.name: f for f in request_figures([], num_refused=0, wall_s=1.0, cpu_s=1.0)}
    assert figures["ttft_p50_ms"].value is None
    assert figures["ttft_p50_ms"].note == "no request got a token"
