"""The kernel benchmark says what it cannot do."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_in_one_sentence(repo_root: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "bench"], cwd=repo_root / "kernels", capture_output=True, text=True
    )
    assert result.returncode == 1 and result.stdout == ""
    sentence = "torch sees no GPU here: run with --cpu to time the torch backend."
    assert result.stderr.strip() == sentence
