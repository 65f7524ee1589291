"""What cannot go together: refused in a sentence that names the settings, before anything changes.

The list of all such combinations of the structural settings; where one of them has more to it, the
tests of its subject say so.
"""

from typing import Any

import pytest

from tests.engine.harness import Runner, build, tokens
from workbench.errors import CapacityError, SettingError

LOW_RANK = {"cache.k_format": "lowrank"}
BELOW = {"cache.values": "dram", "tiers.dram_mib": 1.0}
MERGING = {"retention.merge": "nearest", "retention.level": "token", "cache.grouping": "head"}
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    # one size against another
    (LOW_RANK | {"cache.rank": 20},
     "cache.rank = 20: k_format = lowrank: rank 20 is above the width 16 of a head"),
    (LOW_RANK | {"cache.rank": 6},
     "cache.rank = 6: k_format = lowrank: rank 6 is no multiple of 4"),
    (LOW_RANK | {"cache.rank_heads": 3},
     "cache.rank_heads = 3: 3 joined heads do not divide the 2"),
    (LOW_RANK | {"cache.rank_heads": 2, "cache.grouping": "head"},
     "cache.rank_heads = 2 joins the KV heads of a block, but cache.grouping = head"),
    (LOW_RANK | {"cache.rank_plan": "0-1=4"},
     "cache.rank_plan gives layers ranks of their own, but cache.grouping = model keeps them "
     "together: choose layer or head"),
    (LOW_RANK | {"cache.rank_plan": "7=4", "cache.grouping": "layer"},
     "cache.rank_plan names layer 7, but the model has 2: choose 0 to 1"),
    ({"cache.layer_plan": "0=int8"},
     "cache.layer_plan gives layers formats of their own, but cache.grouping = model keeps "
     "them together"),
    ({"cache.layer_plan": "9=int8", "cache.grouping": "layer"},
     "cache.layer_plan names layer 9, but the model has 2"),
    ({"cache.k_format": "kivi4", "cache.kivi_group": 8},
     "cache.kivi_group = 8 tokens does not divide cache.block_size = 4"),
    # budgets
    ({"retention.split": "pyramid"},
     "retention.split = pyramid gives layers budgets of their own, but cache.grouping = model "
     "keeps them together: choose layer or head"),
    ({"retention.split": "ada", "cache.grouping": "layer"},
     "retention.split = ada gives heads budgets of their own, but cache.grouping = layer keeps"
     " them together: choose head"),
    ({"retention.policy": "snapkv", "retention.window_tokens": 4096},
     "retention.window_tokens = 4096 and retention.sink_tokens = 16 always stay and are more than "
     "retention.budget_tokens = 256, so snapkv would have nothing to choose: choose a shorter "
     "window or a larger budget"),
    # tokens one by one, in pages that are written whole
    ({"cache.k_format": "kivi4", "retention.level": "token"},
     "format kivi4 writes a page only when it is full, so retention.level cannot be token: "
     "choose page"),
    ({"cache.k_format": "kivi4", "cache.mode": "off"},
     "so cache.mode cannot be off: choose on"),
    ({"cache.k_format": "kivi4", "cache.allocation": "contiguous"},
     "so cache.allocation cannot be contiguous: choose paged"),
    ({"cache.residual_tokens": 8, "retention.level": "token"},
     "cache.residual_tokens = 8 lets full pages wait as they are, so retention.level cannot be"
     " token"),
    ({"cache.outlier_pages": 1, "retention.level": "token"},
     "cache.outlier_pages = 1 lets full pages stay as they are, so retention.level cannot be "
     "token"),
    ({"cache.k_format": "int8", "cache.sink_tokens": 4, "retention.level": "token"},
     "cache.sink_tokens = 4 leaves the first pages as they are, so retention.level cannot be "
     "token"),
    ({"cache.k_format": "kvquant4", "retention.level": "token"},
     "cache.sink_tokens = -1 leaves the first pages as they are with KVQuant (0: none), so "
     "retention.level cannot be token"),
    # merging and choosing
    (MERGING | {"retention.level": "page"},
     "retention.merge = nearest merges single tokens of single heads, but retention.level = "
     "page: choose token"),
    (MERGING | {"cache.grouping": "layer"},
     "but cache.grouping = layer: choose head"),
    ({"retention.sparse": "quest", "retention.positions": "compact"},
     "retention.sparse = quest chooses pages by bounds of keys at fixed positions, but "
     "retention.positions = compact moves them"),
    # V below, a basis of one's own, a codec of numbers
    ({"cache.values": "dram"},
     "cache.values = dram moves the V of full pages, but tiers.dram_mib = 0: give DRAM room, "
     "or choose hbm"),
    (BELOW | {"tiers.dram_throttle_mb_s": 10.0},
     "tiers.dram_throttle_mb_s = 10 makes loads wait: choose 0"),
    (BELOW | {"retention.level": "token"},
     "cache.values = dram moves the V of full pages, so retention.level cannot be token"),
    (BELOW | {"tiers.dram_mib": 0.0001},
     "tiers.dram_mib = 0.0001 MiB holds the V of no block"),
    (LOW_RANK | {"cache.basis": "sequence", "cache.v_format": "lowrank"},
     "cache.basis = sequence makes a basis of a request's keys, and V has none, so "
     "cache.v_format cannot be lowrank"),
    (LOW_RANK | {"cache.basis": "sequence", "retention.level": "token"},
     "cache.basis = sequence makes a basis of a request's keys once the prompt is there, so "
     "retention.level cannot be token"),
    ({"tiers.disk_codec": "cachegen", "cache.k_format": "int8"},
     "tiers.disk_codec = cachegen takes pages of bf16 and fp32 only, but the cache has int8"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), IMPOSSIBLE)
def test_it_is_refused_by_name_and_nothing_changes(changes: dict[str, Any], sentence: str) -> None:
    runner = Runner(build({"cache.hbm_budget_mib": 0.5}))
    engine = runner.engine
    request_id = runner.add(tokens(20), 6)
    runner.step(2)
    config, stack, pages = engine.config, engine.stack, engine.stack.pool.ref_cnt.copy()
    with pytest.raises((SettingError, CapacityError)) as error:
        engine.apply(changes)
    assert sentence in str(error.value)
    assert engine.config is config and engine.stack is stack
    assert (stack.pool.ref_cnt == pages).all()
    runner.drain()
    assert len(runner.outputs[request_id]) == 6
    with pytest.raises((SettingError, CapacityError)) as error:
        build({"cache.hbm_budget_mib": 0.5} | changes)
    assert sentence in str(error.value)
