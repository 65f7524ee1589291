"""Triton kernels without a GPU: numbers under the interpreter, registers from offline compiles.

Each runs in a process of its own: with TRITON_INTERPRET set the offline compile fails.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvkernels import triton_formats
from kvkernels.layout import FORMATS, PageSpec

pytest.importorskip("triton", reason="Triton has wheels for Linux only")


def run_script(root: Path, *args: str, timeout: int = 850, **env: str) -> dict | list:
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, *args], cwd=root, env=clean | env, capture_output=True, text=True,
        timeout=timeout,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def check_numbers(report: dict) -> None:
    for name, found in report["attention"].items():
        limit = 0.05 if found["bf16"] else 2e-5
        assert max(found["out"], found["lse"], found["mass"]) < limit, (name, found)
        # the interpreter cuts bf16 off where a GPU rounds: one step instead of a half
        assert found["write"] <= (2.0 if "bf16" in name.split("kv_lens")[0] else 1.0), (name, found)
    assert all(report["pages"].values()), report["pages"]
    assert max(report["writes"].values()) < 5e-3, report["writes"]
    assert report["bounds"].pop("selection")
    for name, found in report["bounds"].items():
        assert min(found["below"], found["above"], found["margin"]) >= 0, (name, found)
    assert all(report["planes"].values()), report["planes"]


def check_registers(report: list) -> None:
    spilled = [x for x in report if x["stack"] or x["local"]]
    assert not spilled, f"kernels that spill registers: {spilled}"
    assert all(x["registers"] <= 255 and x["shared"] <= 227 * 1024 for x in report), report


def test_what_the_kernels_cannot_read_is_named() -> None:
    check = triton_formats.check_twins
    for fmt in FORMATS:
        check(PageSpec(1, 1, 64, 16, fmt, fmt))
    with pytest.raises(ValueError, match="k_format = kivi4 has no Triton kernel for block_size 8"):
        check(PageSpec(1, 1, 64, 8, "kivi4", "bf16"))
    with pytest.raises(ValueError, match="v_format = int2 has no Triton kernel for head_dim 32"):
        check(PageSpec(1, 1, 32, 16, "bf16", "int2"))
    with pytest.raises(ValueError, match="k_format = bf16 has no Triton kernel for head_dim 96"):
        check(PageSpec(1, 1, 96, 16, "bf16", "bf16"))


@pytest.mark.timeout(900)
def test_interpreted_kernels_equal_float64(repo_root: Path) -> None:
    args = ("-m", "tests.kernels.interpret_triton", "short")
    report = run_script(repo_root, *args, TRITON_INTERPRET="1")
    assert isinstance(report, dict) and len(report["attention"]) == 22
    check_numbers(report)


@pytest.mark.timeout(900)
def test_engines_answer_alike_on_interpreted_kernels(repo_root: Path) -> None:
    report = run_script(repo_root, "-m", "tests.kernels.interpret_engine", TRITON_INTERPRET="1")
    assert isinstance(report, dict) and len(report) == 5
    for name, found in report.items():
        assert found["same"] and found["far"] < 1e-4 * found["size"], (name, found)


@pytest.mark.timeout(900)
def test_no_kernel_spills_on_sm_90(repo_root: Path, tmp_path: Path) -> None:
    cache = str(tmp_path)
    report = run_script(repo_root, "tests/kernels/sm90_usage.py", "short", TRITON_CACHE_DIR=cache)
    assert isinstance(report, list) and len(report) == 40
    check_registers(report)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_interpreted_sweep_equals_float64(repo_root: Path) -> None:
    args = ("-m", "tests.kernels.interpret_triton", "all")
    report = run_script(repo_root, *args, timeout=3500, TRITON_INTERPRET="1")
    assert isinstance(report, dict) and len(report["attention"]) > 19
    check_numbers(report)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_combination_spills_on_sm_90(repo_root: Path, tmp_path: Path) -> None:
    cache = str(tmp_path)
    report = run_script(
        repo_root, "tests/kernels/sm90_usage.py", "all", timeout=3500, TRITON_CACHE_DIR=cache
    )
    assert isinstance(report, list) and len(report) > 34
    check_registers(report)
