"""A codec on media that other processes read, or a later one: blobs need nothing beside them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache.codec import CodecFault, RowPart, from_blob, to_blob
from workbench.spatial.hierarchy.shared_store import SERVER_MODULE
from workbench.structural.compression.cachegen import FIT_ROWS, CacheGen

BASE: dict[str, Any] = {
    "cache.hbm_budget_mib": pages(32), "tiers.disk_codec": "cachegen", "tiers.write": "through",
}  # fmt: skip
Settings = Callable[[Path], dict[str, Any]]
KEPT: dict[str, Settings] = {
    "kept disk": lambda path: {
        "tiers.disk_mib": 8.0, "tiers.disk_path": str(path), "tiers.disk_keep": True,
    },
    "objects": lambda path: {"tiers.object_url": str(path), "tiers.object_mib": 8.0},
}  # fmt: skip


def serve(changes: dict[str, Any], num_prompts: int = 6) -> tuple[list[int], Runner]:
    """Cached tokens of each prompt, by an engine of its own."""
    runner = Runner(build(BASE | changes))
    runner.engine.hierarchy.wait_io()
    hits = []
    for seed in range(num_prompts):
        request_id = runner.add(tokens(60, seed), 3)
        request = runner.engine.requests[request_id]
        runner.drain()
        hits.append(request.num_cached_tokens)
    runner.engine.hierarchy.wait_io()
    return hits, runner


@pytest.mark.parametrize("where", KEPT)
def test_a_restart_finds_pages_of_the_lossless_codec_too(tmp_path: Path, where: str) -> None:
    changes = KEPT[where](tmp_path) | {"tiers.disk_codec": "planes+zstd", "cache.reuse": "exact"}
    hits, first = serve(changes)
    assert hits == [0] * 6
    first.engine.close()
    hits, second = serve(changes)
    assert hits == [56] * 6
    second.engine.close()


@pytest.mark.parametrize("where", KEPT)
def test_a_restarted_engine_reads_what_the_first_one_coded(tmp_path: Path, where: str) -> None:
    changes = KEPT[where](tmp_path)
    hits, first = serve(changes)
    assert hits == [0] * 6
    first.engine.close()
    hits, second = serve(changes)
    assert hits == [56] * 6  # all full blocks of 4 but for the last, which is computed
    assert all(not tier.faults for tier in second.engine.hierarchy.stats().tiers)
    assert {row.lineage for row in second.engine.stack.pool.index.rows()} >= {"cachegen<fp32@model"}
    second.engine.close()
    exact, third = serve(changes | {"cache.reuse": "exact"})
    assert exact == [0] * 6
    third.engine.close()


def test_an_engine_reads_what_another_coded_in_a_store_they_share() -> None:
    with store() as address:
        changes = {
            "tiers.shared": "store", "tiers.shared_address": address, "tiers.shared_mib": 8.0,
        }  # fmt: skip
        hits, first = serve(changes)
        assert hits == [0] * 6
        hits, second = serve(changes)
        assert hits == [56] * 6
        assert all(not tier.faults for tier in second.engine.hierarchy.stats().tiers)
        first.engine.close()
        second.engine.close()


@contextmanager
def store() -> Iterator[str]:
    """A store process of its own."""
    with TemporaryDirectory(prefix="kvw-") as folder:  # short: a socket's path has a limit
        address = f"ipc://{folder}/s"
        process = subprocess.Popen(
            [sys.executable, "-m", SERVER_MODULE, "--address", address, "--mib", "8"]
        )
        try:
            while not Path(folder, "s").exists():
                assert process.poll() is None
                time.sleep(0.02)
            yield address
        finally:
            process.terminate()
            process.wait(10)


def test_blobs_for_others_decode_to_the_same_numbers_anywhere() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(64)}))
    request_id = runner.add(tokens(80), 20)
    runner.step(7)
    stack = runner.engine.stack
    blocks = stack.manager.requests[request_id]
    parts = tuple(
        RowPart(spec, group.layers[0], group.kv_heads[0])
        for group, spec in zip(stack.geometry.groups, stack.specs.full, strict=True)
    )
    rows = [stack.store.read_row(stack.manager.parts(blocks.row_at(page))).copy()
            for page in range(FIT_ROWS + 4)]  # fmt: skip
    alone, shared, other = CacheGen(), CacheGen(), CacheGen()
    shared.alone = False
    for row in rows:
        here, there = np.empty_like(row), np.empty_like(row)
        blob = to_blob(alone, row, parts)
        from_blob(alone, memoryview(blob), here)
        from_blob(other, memoryview(to_blob(shared, row, parts)), there)
        assert (here == there).all()  # the tables say how it is written, not what
    with pytest.raises(CodecFault, match="foreign"):  # what one process learned stays with it
        from_blob(other, memoryview(blob), here)
