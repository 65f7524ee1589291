"""`workbench bench devices` runs on tiny models and prints what it promises."""

import pytest

from workbench.lab.devices_bench import measure


@pytest.mark.long  # eleven processes
def test_quick_bench() -> None:
    figures = {figure.name: figure.value for figure in measure(lambda text: None, quick=True)}
    for name in ("tp2", "tp3", "pp2", "ep2"):
        assert figures[f"{name}_logit_difference"] <= 1e-4
        assert figures[f"{name}_tokens_equal"] == 1.0
        assert figures[f"{name}_tokens_per_s"] > 0
    assert figures["tp2_all_reduce_bytes_per_token"] == 2 * 2 * 4 * 96 * 4
    assert figures["pp2_send_bytes_per_token"] == 96 * 4
    assert figures["tp2_kv_balance"] == pytest.approx(4 / 3)
