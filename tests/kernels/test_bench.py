"""The kernel benchmark says what it cannot do."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kvkernels import reference
from kvkernels.api import Scratch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_in_one_sentence(repo_root: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "bench"], cwd=repo_root / "kernels", capture_output=True, text=True
    )
    assert result.returncode == 1 and result.stdout == ""
    sentence = "torch sees no GPU here: run with --cpu to time the torch backend."
    assert result.stderr.strip() == sentence


def test_a_figure_stands_beside_its_target(
    repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repo_root / "kernels"))
    from bench import setup

    text = (repo_root / "kernels/bench/gpu.py").read_text()
    for name in setup.TARGETS:  # each is one that the bench prints
        stem = next(part for part in ("_share_", "_over_bf16_", "_over_none", "_speedup")
                    if part in name)  # fmt: skip
        assert stem.strip("_") in text and name.split("_")[1] in text
    fast = setup.figure("gpu_decode_over_bf16_int4", 0.3, "ratio")
    slow = setup.figure("gpu_decode_over_bf16_int4", 0.5, "ratio")
    assert (fast["target"], fast["target_met"], slow["target_met"]) == ("<= 0.417", True, False)
    assert "target" not in setup.figure("gpu_decode_ms_int4", 1.0, "ms")


def test_a_cache_with_tables_of_each_head_reads_the_same_bytes(
    repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repo_root / "kernels"))
    from bench import setup

    one, each = (
        setup.make_cache("int8", 2, 40, 1, "cpu", torch.bfloat16, groups=groups)
        for groups in (1, 3)
    )
    assert each.tables.page_offsets.shape == (3, 2, 3) and each.spec.num_kv_heads == 1
    assert one.read_bytes == each.read_bytes
    plan = reference.make_plan(each.spec, each.tables, scratch=Scratch())
    out = reference.attend(
        each.q, each.arena, plan, 0, softmax_scale=setup.SOFTMAX_SCALE, state=each.state
    ).out
    assert out.shape == (2, 9 * 64) and bool(out.isfinite().all())
