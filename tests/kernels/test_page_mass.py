"""The mass that eviction by page reads is each page's own, from the Triton kernels too."""

from pathlib import Path

import pytest

from tests.kernels.test_triton import run_script

pytest.importorskip("triton", reason="Triton has wheels for Linux only")


@pytest.mark.timeout(300)
def test_interpreted_mass_of_pages_equals_float64(repo_root: Path) -> None:
    report = run_script(repo_root, "-m", "tests.kernels.mass_triton", TRITON_INTERPRET="1")
    assert isinstance(report, dict) and len(report) == 3
    assert max(report.values()) < 2e-5, report
