"""Every pair of what shapes pages and what empties them runs, with no room to spare."""

import itertools
from typing import Any

import pytest

from tests.engine.harness import Runner, model, spec, tokens
from tests.engine.pairwise import Row, pairwise
from workbench.config import EngineConfig, replace_settings
from workbench.engine.builtin import builtin_registry
from workbench.engine.cache_stack import make_geometry, plan_slabs
from workbench.engine.engine import Engine
from workbench.engine.group_specs import group_specs
from workbench.engine.retainer import slots_needed
from workbench.errors import CapacityError, SettingError
from workbench.request import RequestStatus
from workbench.settings.cache import GROUPINGS
from workbench.settings.formats import KV_FORMATS
from workbench.settings.retention import BUDGET_SPLITS, RETENTION_POLICIES, SPARSE_READS

FORMATS = ("cache.k_format", "cache.v_format")
TIERS: dict[str, dict[str, Any]] = {
    "none": {}, "DRAM": {"tiers.dram_mib": 0.05},
    "DRAM+disk": {"tiers.dram_mib": 0.02, "tiers.disk_mib": 0.5},
}  # fmt: skip
LIVE: dict[str, dict[str, Any]] = {  # what changes while requests run
    "none": {}, "narrow": {"retention.budget_tokens": 16, "retention.window_tokens": 2},
    "wide": {"retention.window_tokens": 17},
}  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "cache.k_format": KV_FORMATS,
    "cache.v_format": KV_FORMATS,
    "retention.policy": RETENTION_POLICIES,
    "cache.grouping": GROUPINGS,
    "retention.level": ("page", "token"),
    "retention.when": ("both", "prefill", "decode"),
    "live": tuple(LIVE),
    "retention.split": BUDGET_SPLITS,
    "retention.sparse": SPARSE_READS,
    "retention.sparse_outliers": (0, 1),
    "tiers": tuple(TIERS),
    "scheduling.preemption": ("recompute", "swap"),
    "cache.block_size": (4, 8, 16),
    "cache.kivi_group": (0, 8),
    "cache.residual_tokens": (0, 10),
    "cache.sink_tokens": (0, 10),
    "cache.outlier_pages": (0, 1),
    "cache.values": ("hbm", "dram"),
}
BASE: dict[str, Any] = {
    "model.max_model_len": 128, "scheduling.chunk_tokens": 12, "scheduling.token_budget": 24,
    "scheduling.watermark": 0.0, "scheduling.admit_whole_prompt": False, "tiers.gate": False,
    "retention.budget_tokens": 20, "retention.sink_tokens": 2, "retention.window_tokens": 6,
    "retention.sparse_pages": 2, "retention.sparse_share": 0.0, "retention.sparse_dense_layers": 0,
}  # fmt: skip
NUM_NEW = 12
NUM_SHARED = 24


def config_of(row: Row) -> EngineConfig:
    changes = {name: value for name, value in row.items() if name not in ("tiers", "live")}
    return replace_settings(EngineConfig(), BASE | changes | TIERS[row["tiers"]])


def accepts(row: Row) -> bool:
    try:
        config_of(row)
    except SettingError:
        return False
    return True


ROWS = pairwise(VALUES, accepts, without=FORMATS)


def other_formats() -> list[Row]:
    """Rows for the pairs of a K and a V format that do not meet above."""
    met = {tuple(row[plane] for plane in FORMATS) for row in ROWS}
    rest = [pair for pair in itertools.product(KV_FORMATS, KV_FORMATS) if pair not in met]
    others = itertools.cycle(ROWS)
    found = []
    for pair in rest:
        chosen = dict(zip(FORMATS, pair, strict=True))
        found.append(next(row | chosen for row in others if accepts(row | chosen)))
    return found


OTHER_FORMATS = other_formats()


def name_of(row: Row) -> str:
    return "-".join(str(value) for value in row.values())


def prompts() -> list[list[int]]:
    shared = tokens(NUM_SHARED, 50)
    return [shared + tokens(5, 1), shared + tokens(9, 2), shared[:17] + tokens(16, 3)]


def tight(config: EngineConfig) -> EngineConfig:
    """The least budget in which the longest of the requests fits alone.

    It may be below what a user can choose: the smallest formats would fit everything in that.
    """
    prompt = max(map(len, prompts()))
    longest = prompt + NUM_NEW
    policy = builtin_registry().create("retention", config.retention.policy)
    slots = slots_needed(config, policy, num_tokens=longest, prompt=prompt, longest=longest)
    pages = -(-slots // config.cache.block_size)
    for number in range(1, 400):
        config = replace_settings(config, {})
        object.__setattr__(config.cache, "hbm_budget_mib", number * 1024 / 2**20)
        try:
            slabs = plan_slabs(make_geometry(config, model()), config, model())
        except CapacityError:
            continue
        specs = group_specs(make_geometry(config, model()), config, model())
        if specs.fitting_pages(config, *slabs) >= pages:
            return config
    raise AssertionError("no budget fits")


def run(row: Row) -> Engine:
    engine = Engine(tight(config_of(row)), model(), verify_bytes=True)
    runner = Runner(engine)
    ids = []
    for prompt in prompts():
        ids.append(runner.engine.add_request(spec(prompt, NUM_NEW)))
        runner.step(2)
        if len(ids) == 2:  # the first has evicted, or will
            runner.engine.apply(LIVE[row["live"]])
    runner.drain(600)
    assert not any(runner.errors.values()), runner.errors
    for request_id in ids:
        assert runner.status[request_id] == RequestStatus.FINISHED_LENGTH
        assert len(runner.outputs[request_id]) == NUM_NEW
    engine.frame(1, state="idle")
    engine.close()
    return engine


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[] if at % 3 == 0 else [pytest.mark.long])
        for at, row in enumerate(ROWS)
    ],
    ids=name_of,
)
def test_pair(row: Row) -> None:
    engine = run(row)
    pressed = engine.log.totals["retain"] + engine.metrics.num_preemptions
    mixes = engine.stack.manager.roles.mixes  # one slab more may hold all the smallest pages
    if not mixes:
        assert pressed + engine.stack.pool.num_evicted_rows > 0


@pytest.mark.long
@pytest.mark.parametrize("row", OTHER_FORMATS, ids=name_of)
def test_pair_of_formats(row: Row) -> None:
    run(row)


def test_only_impossible_pairs_are_missing() -> None:
    """What is left out is what the settings refuse: budgets a layer or head, packed groups."""
    meet = {
        (one, row[one], two, row[two])
        for row in ROWS + OTHER_FORMATS for one in VALUES for two in VALUES
    }  # fmt: skip
    missing = {
        (one, a, two, b)
        for one in VALUES for two in VALUES if one < two
        for a in VALUES[one] for b in VALUES[two]
        if (one, a, two, b) not in meet
    }  # fmt: skip
    grouped = {(plane, f"kivi{bits}", "retention.level", "token")
               for plane in FORMATS for bits in (2, 3, 4)}  # fmt: skip
    split = {("cache.grouping", grouping, "retention.split", name)
             for name in BUDGET_SPLITS[1:] for grouping in GROUPINGS[:2]}  # fmt: skip
    layer = {("cache.grouping", "layer", "retention.split", name)
             for name in ("ada", "ada+pyramid")}  # fmt: skip
    waiting = {(f"cache.{name}_tokens", 10, "retention.level", "token")
               for name in ("residual", "sink")}  # fmt: skip
    waiting.add(("cache.outlier_pages", 1, "retention.level", "token"))
    below = {("cache.values", "dram", "retention.level", "token"),
             ("cache.values", "dram", "tiers", "none")}  # fmt: skip
    assert missing == grouped | split | layer | waiting | below
