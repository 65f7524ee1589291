"""The codecs' bench on a random model: a lossless codec costs nothing, a lossy one says what."""

import pytest

from workbench.quality import codecs_bench
from workbench.quality.codecs_bench import CODECS


def test_lossless_is_exact_and_bytes_are_counted() -> None:
    told: list[str] = []
    figures = {f.name: f for f in codecs_bench.measure(told.append, quick=True)}
    assert told[0].endswith("window 1: full cache")
    assert figures["kl_planes_zstd"].value == 0, "what comes back is what went"
    assert figures["table_bytes_planes_zstd"].value == 0
    bits = [figures[f"bits_per_value_{name}"].value for name in ("planes_zstd", "cachegen")]
    assert bits[1] < bits[0] < 32 and len(CODECS) == 2
    assert figures["kl_cachegen"].value > 0 and figures["table_bytes_cachegen"].value > 0
    assert figures["bits_per_value_cachegen"].note.startswith("headers included; 16 pages of 32.00")
    assert all(figures[f"{way}_mb_s_cachegen"].value > 0 for way in ("encode", "decode"))
    assert figures["kl_cachegen"].value == pytest.approx(
        {f.name: f for f in codecs_bench.measure(told.append, quick=True)}["kl_cachegen"].value
    )
