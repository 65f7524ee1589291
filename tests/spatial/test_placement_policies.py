"""Which page leaves a tier and where it goes: policies, one's own, and those that misbehave."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.engine.harness import Runner, build, pages, tokens
from tests.spatial.test_ladder import change, fill, held, stats
from tests.spatial.test_state_machine import PAGES, Tiers, keys
from workbench.cache.keys import PrivateKey, TierKey
from workbench.cache.placement import HALF_LIFE_S, PageFacts, PlacementPolicy, StoredPage, TierState
from workbench.clock import ManualClock
from workbench.config import EngineConfig, replace_settings
from workbench.engine.builtin import builtin_registry
from workbench.errors import SettingError
from workbench.spatial.hierarchy.entries import Entry, EntryTable, State
from workbench.spatial.hierarchy.pins import Pins
from workbench.spatial.hierarchy.placement import (
    CostPlacement,
    ImportancePlacement,
    LruPlacement,
)
from workbench.spatial.hierarchy.sample import NUM_OLDEST, NUM_RANDOM

G2 = TierState("G2", 1000, 1000, 0.0, 1e-9, 0.0, 1e-9, 0.0)
DISK = TierState("G3", 1000, 0, 1e-4, 1e-8, 1e-4, 1e-8, 0.0)
SLOW = TierState("G4", 1000, 0, 0.05, 1e-6, 0.05, 1e-6, 0.0)


def page(**more: Any) -> StoredPage:
    facts: dict[str, Any] = dict(
        key=b"k" * 32, page_bytes=10_000, charged_bytes=10_000, num_tokens=16, first_token=0,
        mass=None, reuse=1.0, idle_s=0.0, remaining_tokens=0, recompute_s=0.02, remaining_s=0.0,
    )  # fmt: skip
    return StoredPage(**facts | more)


# ---- the formulas


def test_cost_weighs_reuse_waiting_tokens_and_the_measured_links() -> None:
    policy = CostPlacement()
    load_s = 1e-4 + 10_000 * 1e-8
    worth = policy.keep(page(reuse=3.0), G2, [DISK])
    assert worth == pytest.approx(3.0 * (load_s - 1e-5) / 10_000)
    alone = policy.keep(page(reuse=3.0), G2, [])
    assert alone == pytest.approx(3.0 * (0.02 - 1e-5) / 10_000), "nothing below: computed again"
    waited = policy.keep(page(reuse=3.0, remaining_tokens=160, remaining_s=0.2), G2, [])
    assert waited - alone == pytest.approx((0.2 - 1e-5) / 10_000)
    slower = policy.keep(page(recompute_s=0.001), SLOW, [])
    assert slower < 0, "a tier slower than computing loses by every hit"
    unknown = page(reuse=2.0, recompute_s=None, remaining_s=None)
    assert policy.keep(unknown, G2, [DISK]) == pytest.approx(2.0 / 10_000)


def test_cost_hands_down_only_what_is_worth_its_way() -> None:
    policy = CostPlacement()
    assert policy.takers(page(), [SLOW, DISK]) == ["G3"], "G4 is slower than computing"
    assert policy.takers(page(recompute_s=1.0), [SLOW, DISK]) == ["G3", "G4"]
    assert policy.takers(page(reuse=0.005), [DISK]) == [], "not worth the write"
    assert policy.takers(page(recompute_s=1e-5), [DISK, SLOW]) == []
    busy = TierState("G3", 1000, 0, 1e-4, 1e-8, 1e-4, 1e-8, 2.0)
    assert policy.takers(page(recompute_s=1.0), [busy, SLOW]) == ["G4"], "its link is loaded"
    late = page(recompute_s=1e-5, remaining_tokens=1600, remaining_s=1.0)
    assert "G3" in policy.takers(late, [DISK]), "a waiting request would lose more than a page"
    assert policy.takers(page(recompute_s=None), [SLOW, DISK]) == ["G4", "G3"]


def test_importance_keeps_attention_and_forgets_slowly() -> None:
    policy = ImportancePlacement()

    def keep(**facts: Any) -> float:
        return policy.keep(page(**facts), G2, [])

    assert keep(mass=0.3) > keep(mass=0.1) > keep(mass=0.01)
    assert keep(mass=0.3, idle_s=HALF_LIFE_S) == pytest.approx(keep(mass=0.15))
    policy = ImportancePlacement()
    for mass in (0.1, 0.2):
        keep(mass=mass)
    assert keep(mass=0.1) < keep(mass=None) < keep(mass=0.2), "unknown counts as the usual"


def test_uses_fade_and_facts_are_shared_by_the_tiers() -> None:
    facts = PageFacts()
    for now_s in (0.0, HALF_LIFE_S, 2 * HALF_LIFE_S):
        facts.use(now_s)
    assert facts.uses == 1.75
    facts.renew(PageFacts(16, 32, None, 2))
    facts.renew(PageFacts(16, 32, 0.5, 1))
    facts.renew(PageFacts(16, 32))
    assert (facts.num_tokens, facts.first_token, facts.mass, facts.num_hits) == (16, 32, 0.5, 2)


# ---- in the tiers


def store(t: Any, number: int, **facts: Any) -> None:
    assert t.h.store(t.key(number), t.page(t.key(number)), 4, None, PageFacts(16, **facts))
    t.settle()


def test_important_pages_stay_up_and_lru_lets_them_go(harness):  # type: ignore[no-untyped-def]
    left = {}
    for policy in (LruPlacement(), ImportancePlacement()):
        t = harness(4, 16)
        t.h.mover.placer.choose(policy)
        for number in range(12):
            store(t, number, mass=0.5 if number < 3 else 0.01)
        left[type(policy)] = held(t, "G2")
        assert t.load([t.key(number) for number in range(12)]) is not None
    assert left[LruPlacement] == {8, 9, 10, 11}
    assert left[ImportancePlacement] == {0, 1, 2, 11}


def test_mass_travels_down_and_up_again(harness):  # type: ignore[no-untyped-def]
    t = harness(1, 8)
    store(t, 0, mass=0.5)
    store(t, 1, mass=0.1)
    assert held(t, "G2") == {1} and held(t, "G3") == {0}
    assert t.load([t.key(0)]) == ["G3"] and held(t, "G2") == {0}
    assert t.h.mover.dram.get(t.key(0)).facts.mass == 0.5
    store(t, 0)  # it was in HBM, and nobody observed it there
    assert t.h.mover.dram.get(t.key(0)).facts.mass == 0.5


def test_cost_keeps_what_is_used_and_what_is_waited_for(harness):  # type: ignore[no-untyped-def]
    clock = ManualClock()
    t = harness(3, 0, clock)
    placer = t.h.mover.placer
    placer.recompute_s = lambda num_tokens: 1e-3 * num_tokens
    placer.choose(CostPlacement())
    for number in range(3):
        store(t, number)
    for _ in range(3):
        assert t.load([t.key(0)]) == ["G2"]
        clock.advance(1.0)
    placer.remaining = lambda: {t.key(1): 160}
    placer.begin_step()
    for number in range(3, 6):
        store(t, number)
        clock.advance(1.0)
    assert held(t, "G2") == {0, 1, 5}


def test_cost_writes_nothing_to_a_disk_slower_than_computing(harness):  # type: ignore[no-untyped-def]
    for per_token_s, expected in ((1e-9, 0), (1.0, 6)):
        t = harness(2, 16, ManualClock(), disk_throttle_mb_s=1.0)
        t.h.mover.placer.recompute_s = lambda num_tokens, s=per_token_s: s * num_tokens
        t.h.mover.placer.choose(CostPlacement())
        for number in range(8):
            assert t.h.store(t.key(number), t.page(t.key(number)), 4, None, PageFacts(16))
            for _ in range(3):
                t.settle()
                t.clock.advance(1.0)
        assert stats(t, "G3").num_stores == expected
        assert stats(t, "G3").num_dropped_stores == 6 - expected


# ---- the choice stays cheap, and safe


def table_of(count: int) -> EntryTable:
    table = EntryTable("G2", count, lambda entry: None, Pins())
    for number in range(count):
        table.add(Entry(number.to_bytes(32, "little"), 1, 1, (), number, State.READY))
    return table


def test_a_choice_compares_a_bounded_sample() -> None:
    table, seen = table_of(5000), []

    def order(entries: list[Entry]) -> list[Entry]:
        seen.append(len(entries))
        return sorted(entries, key=lambda entry: -entry.generation)  # the newest first

    table.order = order
    victims = table.victims(1) or []
    assert len(seen) == 1 and NUM_OLDEST <= seen[0] <= NUM_OLDEST + NUM_RANDOM
    assert victims[0].generation > 2500, "the sample reaches beyond the oldest"
    assert len({entry.generation for entry in table.victims(4000) or []}) == 4000
    small = table_of(20)
    small.order = order
    assert [entry.generation for entry in small.victims(1) or []] == [19], "exact where it is small"


@settings(max_examples=200, deadline=None)
@given(data=st.data(), count=st.integers(1, 80), need=st.integers(1, 80))
def test_victims_are_never_pinned_leased_or_being_written(
    data: st.DataObject, count: int, need: int
) -> None:
    table = table_of(count)
    busy = data.draw(st.sets(st.integers(0, count - 1)))
    for number, entry in enumerate(table.all_entries()):
        if number in busy and number % 3 == 0:
            table.pin(entry)
        elif number in busy and number % 3 == 1:
            table.holds.pin(entry.key, math.inf)
        elif number in busy:
            entry.state = State.WRITING
    last = data.draw(st.sets(st.integers(0, count - 1))) - busy
    for number in last:
        table.holds.pin(number.to_bytes(32, "little"), math.inf, soft=True)
    ranks = data.draw(st.lists(st.floats(allow_nan=False), min_size=count, max_size=count))
    table.order = lambda entries: sorted(entries, key=lambda entry: ranks[entry.generation])
    victims = table.victims(need)
    if need > count - len(busy):
        assert victims is None
        return
    assert victims is not None and len(victims) == need == len(set(map(id, victims)))
    gone = {entry.generation for entry in victims}
    assert busy.isdisjoint(gone)
    assert not gone & last or set(range(count)) - busy - last <= gone, "soft pins go last"


# ---- policies that misbehave


class Raises(PlacementPolicy):
    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        raise RuntimeError("I cannot decide")

    def takers(self, page: StoredPage, below: Sequence[TierState]) -> Sequence[str]:
        raise KeyError("nor here")


class Nonsense(PlacementPolicy):
    """Another wrong answer each time."""

    def __init__(self) -> None:
        self.number = 0

    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        self.number += 1
        return [math.nan, "much", None, object(), [], 1 + 2j][self.number % 6]  # type: ignore[return-value]

    def takers(self, page: StoredPage, below: Sequence[TierState]) -> Sequence[str]:
        self.number += 1
        return [["G9"], None, 7, [["G3"]], [None], "G3"][self.number % 6]  # type: ignore[return-value]


class Newest(PlacementPolicy):
    """One's own: the newest leaves, and nothing goes down twice."""

    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        return page.idle_s

    def takers(self, page: StoredPage, below: Sequence[TierState]) -> Sequence[str]:
        return [tier.name for tier in reversed(below)]


@pytest.mark.parametrize("policy", [Raises, Nonsense])
def test_a_policy_that_fails_is_counted_and_lru_decides(harness, policy):  # type: ignore[no-untyped-def]
    t, lru = harness(4, 16), harness(4, 16)
    t.h.mover.placer.choose(policy())
    for each in (t, lru):
        fill(each, 12)
    assert held(t, "G2") == held(lru, "G2") and held(t, "G3") == held(lru, "G3")
    faults = t.h.mover.placer.num_faults
    assert faults >= 8 and sum(tier.faults["policy"] for tier in t.h.stats().tiers[:2]) == faults
    assert len(t.faults()) == 1 and t.faults()[0][1].startswith("policy: "), "told of once"
    assert not any(tier.failed for tier in t.h.stats().tiers)
    assert set(t.load([t.key(number) for number in range(12)])) == {"G2", "G3"}
    change(t, dram_mib=0.0)
    assert held(t, "G2") == set()


def test_takers_choose_the_tier(harness, tmp_path):  # type: ignore[no-untyped-def]
    t = harness(1, 8, object_url=str(tmp_path))
    t.h.mover.placer.choose(Newest())
    fill(t, 4)
    assert held(t, "G4") == {0, 1, 2} and held(t, "G3") == set()


POLICIES = (LruPlacement, CostPlacement, ImportancePlacement, Newest, Raises, Nonsense)


class AnyPolicy(Tiers):
    """The tiers' own machine, with policies that come and go and some that misbehave."""

    @rule(make=st.sampled_from(POLICIES), per_token_s=st.sampled_from([None, 1e-9, 1.0]))
    def choose(self, make: type[PlacementPolicy], per_token_s: float | None) -> None:
        placer = self.h.mover.placer
        placer.recompute_s = lambda count: None if per_token_s is None else per_token_s * count
        placer.choose(make())

    @rule(wanted=st.dictionaries(keys, st.integers(0, 99)))
    def requests_wait(self, wanted: dict[TierKey, int]) -> None:
        self.h.mover.placer.remaining = lambda: wanted
        self.h.begin_step(1)

    @rule(key=keys, mass=st.none() | st.floats(0, 1), hits=st.integers(0, 3))
    def store_with_facts(self, key: TierKey, mass: float | None, hits: int) -> None:
        if not isinstance(key, PrivateKey):
            self.h.store(key, PAGES[key], 2, None, PageFacts(4, 4, mass, hits))
            self.stored.add(key)

    def check_reasons(self, reasons: set[str]) -> None:
        assert reasons <= {"no_room", "policy"}


TestAnyPolicy = AnyPolicy.TestCase
TestAnyPolicy.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


# ---- through the engine

TIERS = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 0.02, "tiers.disk_mib": 0.5}
PROMPTS = [tokens(60, seed) for seed in (0, 1, 2, 0, 3, 1, 0)]


def outputs(runner: Runner) -> list[list[int]]:
    found = [runner.one(prompt, 6) for prompt in PROMPTS]
    assert runner.engine.fetch_counters.num_loaded_pages > 0
    runner.engine.close()
    return found


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    found = [runner.one(prompt, 6) for prompt in PROMPTS]
    runner.engine.close()
    return found


@pytest.mark.parametrize("make", [Newest, Raises, Nonsense])
def test_ones_own_class_is_chosen_by_its_name(
    make: type[PlacementPolicy], expected: list[list[int]]
) -> None:
    registry = builtin_registry()
    registry.register("placement", "mine", make)
    runner = Runner(build(TIERS | {"tiers.policy": "mine"}, registry=registry))
    assert isinstance(runner.engine.hierarchy.mover.placer.policy, make)
    assert outputs(runner) == expected, "the tokens are the same, wherever the pages lie"
    assert (runner.engine.hierarchy.mover.placer.num_faults > 0) == (make is not Newest)


@pytest.mark.parametrize("name", ["cost", "importance"])
def test_the_policies_serve_the_same_tokens(name: str, expected: list[list[int]]) -> None:
    assert outputs(Runner(build(TIERS | {"tiers.policy": name}))) == expected


def test_the_engine_measures_what_policies_weigh() -> None:
    runner = Runner(build(TIERS | {"tiers.policy": "importance", "scheduling.max_num_seqs": 1}))
    for seed in range(4):
        runner.one(tokens(60, seed), 3)
    dram = runner.engine.hierarchy.mover.dram
    masses = [entry.facts.mass for entry in dram.all_entries()]
    assert masses and all(mass is not None and 0 < mass <= 1 for mass in masses)
    assert {entry.facts.num_tokens for entry in dram.all_entries()} == {4}
    runner.add(tokens(40, 9), 30)
    runner.step()
    runner.add(tokens(60, 3), 3)
    runner.step()
    wanted = runner.engine.hierarchy.mover.placer.remaining()
    assert sorted(wanted.values(), reverse=True)[:2] == [56, 52]
    runner.drain()
    assert runner.engine.hierarchy.mover.placer.remaining() == {}
    runner.engine.close()


def test_a_policy_changes_live_and_back(expected: list[list[int]]) -> None:
    runner = Runner(build(TIERS))
    found = []
    for prompt, name in zip(PROMPTS, ["cost", "importance", "lru"] * 3, strict=False):
        assert runner.engine.apply({"tiers.policy": name}).kinds in ({"tiers.policy": "hot"}, {})
        found.append(runner.one(prompt, 6))
    assert found == expected
    before = runner.engine.placement
    with pytest.raises(SettingError, match="'best' is no placement policy: choose one"):
        runner.engine.apply({"tiers.policy": "best"})
    assert runner.engine.placement is before and runner.engine.config.tiers.policy == "cost"
    runner.engine.close()


class Broken(PlacementPolicy):
    def __init__(self) -> None:
        raise OSError("no model file")

    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (Broken, r"tiers.policy = 'mine' cannot be built \(OSError: no model file\)"),
        (object, "tiers.policy = 'mine' has no method keep: subclass PlacementPolicy"),
        (lambda: 3, "tiers.policy = 'mine' has no method keep"),
        (lambda clock: clock, r"tiers.policy = 'mine' cannot be built \(TypeError"),
    ],
)
def test_a_class_that_is_no_policy_is_refused(factory: Any, sentence: str) -> None:
    registry = builtin_registry()
    registry.register("placement", "mine", factory)
    with pytest.raises(SettingError, match=sentence):
        build(TIERS | {"tiers.policy": "mine"}, registry=registry)


def test_an_unknown_name_is_refused_with_the_names_that_exist() -> None:
    registry = builtin_registry()
    registry.register("placement", "mine", Newest)
    with pytest.raises(SettingError, match="choose one of lru, cost, importance, mine"):
        build({"tiers.policy": "yours"}, registry=registry)
    with pytest.raises(SettingError, match="tiers.policy = 3 is not allowed: give text"):
        replace_settings(EngineConfig(), {"tiers.policy": 3})


# ---- selective writing counts hits in HBM


@pytest.mark.parametrize("hits", [1, 2, 3])
def test_selective_writes_a_page_down_at_its_hit_in_hbm(hits: int) -> None:
    """SGLang's write_through_selective: the upper tier's hits count, and DRAM passes it on."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(64), "tiers.dram_mib": 1.0,
                           "tiers.disk_mib": 1.0, "tiers.write": "selective",
                           "tiers.write_hits": hits}))  # fmt: skip
    engine, prompt = runner.engine, tokens(40)
    stored = []
    for number in range(5):
        runner.one(prompt + tokens(6, number), 2)
        engine.hierarchy.wait_io()
        stored.append([tier.num_stores for tier in engine.hierarchy.stats().tiers[:2]])
    assert stored == [[0, 0]] * hits + [[10, 10]] * (5 - hits), "ten shared pages, each once"
    runner.engine.close()


def test_hits_in_hbm_go_on_counting_in_dram() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(16, block_size=8), "tiers.dram_mib": 1.0,
                           "tiers.disk_mib": 1.0, "tiers.write": "selective",
                           "tiers.write_hits": 2}))  # fmt: skip
    engine, prompt = runner.engine, tokens(24)
    runner.one(prompt, 2)
    runner.one(prompt, 2)  # a first hit in HBM: five of six pages, the last token is computed
    for seed in (1, 2, 3):
        runner.one(tokens(48, seed), 2)  # pushes them to DRAM
    disk = next(tier for tier in engine.hierarchy.mover.ladder.tiers if tier.name == "G3")
    assert not len(disk.table)
    runner.one(prompt, 2)  # a second one, in DRAM
    engine.hierarchy.wait_io()
    assert len(disk.table) == 5
    runner.engine.close()
