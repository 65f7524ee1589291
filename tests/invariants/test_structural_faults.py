"""Faults of other caches (part 6 of the structural reference, by number) that no other test has.

The table of all sixteen is `tests/structural/README.md`; that it names tests is checked here.
"""

import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from kvkernels.layout import FORMATS, PageSpec
from xxhash import xxh3_64_intdigest

from tests.engine.harness import MIB, Runner, build, tokens
from workbench.cache.keys import TierKey
from workbench.engine.engine import Engine
from workbench.request import Request

SIZE = 8
FAMILIES = ("bf16", "int8", "nvfp4", "kivi2", "kvquant4", "lowrank_int4")
HBM_MIB = 0.0625  # the least there is


def row_sums(engine: Engine) -> dict[bytes, int]:
    """Checksum of the bytes of every row in HBM."""
    stack = engine.stack
    return {
        row.key: xxh3_64_intdigest(stack.store.read_row(stack.manager.parts(row.blocks)).tobytes())
        for row in stack.pool.index.rows()
    }


def test_01_a_configuration_is_nobodys_to_change() -> None:
    """transformers #48700: an option was taken out of the dictionary that the user passed."""
    changes: dict[str, Any] = {"cache.k_format": "kivi4", "cache.residual_tokens": 4}
    given = dict(changes)
    runner = Runner(build(changes))
    runner.engine.apply(more := {"cache.k_format": "int8"})
    runner.one(tokens(20), 4)
    assert changes == given and more == {"cache.k_format": "int8"}
    with pytest.raises(FrozenInstanceError):
        runner.engine.config.cache.k_format = "fp32"  # type: ignore[misc]


@pytest.mark.parametrize("residual", [0, 8])
@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("name", ["kivi4", "int4"])
def test_02_no_schedule_leaves_more_unencoded_than_the_residual_and_a_page(
    name: str, chunk: int, residual: int
) -> None:
    """VeloxQuant #86, #162: tokens that came one by one stayed in full precision for ever."""
    runner = Runner(build({
        "cache.k_format": name, "cache.v_format": name, "cache.block_size": SIZE,
        "cache.residual_tokens": residual, "cache.hbm_budget_mib": 1.0,
        "scheduling.chunk_tokens": chunk,
    }))  # fmt: skip
    pool, manager = runner.engine.stack.pool, runner.engine.stack.manager
    request_id = runner.add(tokens(27), 24)
    most, stored = 0, 0
    while runner.engine.has_work():
        runner.step()
        blocks = manager.requests.get(request_id)
        if blocks is None:
            break
        stored = int(blocks.stored_len[0])
        classes = pool.page_classes(blocks.table[0, : -(-stored // SIZE)])
        encoded = sum(SIZE for cls in classes if cls == manager.classes[0])
        most = max(most, stored - min(stored, encoded))
    assert stored > 2 * (residual + SIZE), "or nothing was seen"
    assert most <= residual + SIZE - 1


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAMILIES else [pytest.mark.long]) for name in FORMATS],
)
def test_09_rows_of_every_format_come_back_byte_by_byte(name: str, tmp_path: Path) -> None:
    """vLLM #48412, #49226: inline scales did not fit the width that tiers moved."""
    page = PageSpec(2, 2, 16, SIZE, name, name).page_bytes
    runner = Runner(build({
        "cache.k_format": name, "cache.v_format": name, "cache.block_size": SIZE,
        "cache.hbm_budget_mib": HBM_MIB, "tiers.dram_mib": 4 * page / MIB,
        "tiers.disk_mib": 1.0, "tiers.disk_codec": "planes+zstd", "tiers.object_url": str(tmp_path),
    }))  # fmt: skip
    engine, seen, loaded = runner.engine, {}, set()
    told = engine.fetcher.on_load

    def on_load(request: Request, tiers: dict[TierKey, str], seconds: float) -> None:
        loaded.update(tiers)
        told(request, tiers, seconds)

    engine.fetcher.on_load = engine.fetcher.arrivals.on_load = on_load
    many = 3 + int(1.2 * HBM_MIB * MIB / (page * (60 // SIZE)))  # more than HBM holds
    prompts = [tokens(60, seed) for seed in range(many)]
    first = []
    for prompt in prompts:
        first.append(runner.one(prompt, 2))
        seen |= row_sums(engine)
        engine.hierarchy.wait_io()
    again = [runner.one(prompt, 2) for prompt in prompts]
    assert again == first or FORMATS[name].key.grouped, "what is sealed later was read exactly"
    back = row_sums(engine)
    known = loaded & back.keys() & seen.keys()
    assert known and all(back[key] == seen[key] for key in known)
    engine.close()


def named_tests(root: Path) -> Iterator[tuple[int, str, str]]:
    """(number, file, test) of the table."""
    text = (root / "tests/structural/README.md").read_text()
    for line in text.splitlines():
        row = re.match(r"\| (\d+) \|", line)
        file = ""
        for file_name, test in re.findall(r"`(?:([\w/]+\.py)::)?(test_\w+)`", line if row else ""):
            file = file_name or file
            yield int(row[1] if row else 0), file, test


def test_every_numbered_fault_has_a_test(repo_root: Path) -> None:
    found = list(named_tests(repo_root))
    assert {number for number, _, _ in found} == set(range(1, 17))
    for number, file, test in found:
        text = (repo_root / "tests" / file).read_text()
        assert f"def {test}(" in text, f"fault {number}: tests/{file} has no {test}"
