"""Codecs on the way to disk: what comes back is what went, in fewer real bytes, or it is no hit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache.codec import CodecFault, from_blob, to_blob
from workbench.structural.compression.byte_planes import BytePlanes


def bf16_like(count: int) -> np.ndarray:
    """Bytes of normally distributed bf16 numbers."""
    wide = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    return (wide.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@given(st.binary(min_size=1, max_size=3000))
def test_any_page_comes_back(data: bytes) -> None:
    page = np.frombuffer(data, np.uint8)
    back = np.empty_like(page)
    from_blob(BytePlanes(), memoryview(to_blob(BytePlanes(), page)), back)
    assert (back == page).all()


def test_planes_pay_on_bf16() -> None:
    page = bf16_like(1 << 16)
    whole = BytePlanes()._pack.compress(page.tobytes())
    blob = to_blob(BytePlanes(), page)
    assert len(blob) < 0.85 * page.nbytes and len(blob) < len(whole)


@pytest.mark.parametrize("at", [0, 4, 6, 7, 8, 16, 24, 200])
def test_a_damaged_blob_is_refused(at: int) -> None:
    page = bf16_like(4096)
    blob = bytearray(to_blob(BytePlanes(), page))
    blob[at] ^= 0x55
    with pytest.raises(CodecFault, match="foreign|corrupt"):
        from_blob(BytePlanes(), memoryview(blob), np.empty_like(page))
    with pytest.raises(CodecFault, match="truncated|corrupt"):
        from_blob(BytePlanes(), memoryview(blob)[:at], np.empty_like(page))
    with pytest.raises(CodecFault, match="corrupt"):
        whole = memoryview(to_blob(BytePlanes(), page))
        from_blob(BytePlanes(), whole, np.empty(page.nbytes - 1, np.uint8))


def test_requests_go_on_from_coded_pages_on_disk() -> None:
    """Evicted to a coded disk tier and fetched again: the same tokens, and hits were served."""
    outputs = {}
    for codec in ("none", "planes+zstd"):
        runner = Runner(
            build(
                {
                    "cache.hbm_budget_mib": pages(32),
                    "tiers.disk_mib": 4.0,
                    "tiers.disk_codec": codec,
                }
            )
        )
        prompts = [tokens(40, seed) for seed in range(4)]
        outputs[codec] = [runner.one(prompt, 6) for prompt in prompts * 2]
        stats = next(s for s in runner.engine.hierarchy.stats().tiers if s.name == "G3")
        assert stats.num_hits > 0 and not stats.faults
        runner.engine.close()
    assert outputs["none"] == outputs["planes+zstd"]


def test_the_codec_changes_live_and_older_files_stay_readable() -> None:
    runner = Runner(
        build(
            {"cache.hbm_budget_mib": pages(32), "tiers.disk_mib": 4.0, "tiers.disk_codec": "none"}
        )
    )
    first = runner.one(tokens(40, 0), 6)
    runner.one(tokens(40, 1), 6)
    assert runner.engine.apply({"tiers.disk_codec": "planes+zstd"}).kinds == {
        "tiers.disk_codec": "hot"
    }
    runner.one(tokens(40, 2), 6)
    assert runner.one(tokens(40, 0), 6) == first
    runner.engine.close()
