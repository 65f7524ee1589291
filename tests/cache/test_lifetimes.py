"""Prompt caching: breakpoints and lifetimes as a caller asks for them, and what it is told."""

from typing import Any

import msgspec
import pytest

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.cache_control import CacheBreakpoint, CacheUsage
from workbench.clock import ManualClock
from workbench.errors import RequestError
from workbench.request import RequestSpec
from workbench.settings.cache import PREFIX_INDEXES

SIZE = 4
MINUTE = 60.0
EXPLICIT = {"cache.prompt_caching": "explicit", "cache.min_cacheable_tokens": 8}


def at(*places: int, ttl: str = "5m") -> list[CacheBreakpoint]:
    return [CacheBreakpoint(at=place, ttl=ttl) for place in places]


class Caller(Runner):
    """Sends prompts one after another and reads what they cost."""

    def __init__(self, changes: dict[str, Any] | None = None, **more: Any) -> None:
        self.clock = ManualClock()
        super().__init__(build(EXPLICIT | (changes or {}), clock=self.clock, **more))
        self.usages: dict[str, CacheUsage] = {}
        self.checked = False

    def ask(self, prompt: list[int], points: list[CacheBreakpoint] | None = None,
            **more: Any) -> CacheUsage:  # fmt: skip
        request_id = self.add(prompt, 3, cache_control=points or [], **more)
        self.drain()
        if points and not self.checked:  # once a test: that what is kept answers as it should
            assert_naive(model(), prompt, self.outputs[request_id])
            self.checked = self.usages[request_id].cache_read_input_tokens > 0
        usage = self.usages[request_id]
        assert usage.cache_read_input_tokens <= len(prompt) - 1  # I12
        assert len(prompt) == (usage.input_tokens + usage.cache_read_input_tokens
                               + usage.cache_creation_input_tokens)  # fmt: skip
        assert sum(usage.cache_creation.values()) == usage.cache_creation_input_tokens
        return usage

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for output in self.engine.step():
                self.outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
                self.status[output.request_id] = output.status
                self.errors[output.request_id] = output.error
                if output.usage is not None:
                    self.usages[output.request_id] = output.usage
            self.check()


def read(usage: CacheUsage) -> tuple[int, int]:
    return usage.cache_read_input_tokens, usage.cache_creation_input_tokens


@pytest.mark.parametrize("index", PREFIX_INDEXES)
def test_only_what_was_marked_is_ever_a_hit(index: str) -> None:
    caller = Caller({"cache.index": index, "cache.partial_hits": True})
    prompt = tokens(30)
    assert read(caller.ask(prompt)) == (0, 0)
    assert read(caller.ask(prompt, at(20))) == (0, 20), "its blocks lie there, but unmarked"
    assert read(caller.ask(prompt, at(20))) == (20, 0)
    assert read(caller.ask(prompt)) == (0, 0), "who marks nothing reads nothing"
    assert read(caller.ask(prompt, at(12))) == (0, 12), "no entry ends at or before token 12"
    assert read(caller.ask(prompt, at(28))) == (20, 8), "the longest entry in front of it"
    assert read(caller.ask(prompt[:16] + tokens(14, 9), at(28))) == (12, 16)


def test_automatic_caching_hits_whatever_is_there_and_still_keeps_what_is_marked() -> None:
    caller = Caller({"cache.prompt_caching": "automatic"})
    prompt = tokens(30)
    assert read(caller.ask(prompt)) == (0, 0)
    assert read(caller.ask(prompt, at(20))) == (28, 0)
    assert len(caller.engine.lifetimes) == 1
    caller.engine.apply({"cache.prompt_caching": "explicit"})
    assert read(caller.ask(prompt, at(28))) == (20, 8)


def test_several_breakpoints_and_their_lifetimes() -> None:
    caller = Caller()
    prompt = tokens(42)
    points = at(12, 20, ttl="1h") + at(32, 40)
    usage = caller.ask(prompt, points)
    assert usage.cache_creation == {"ephemeral_5m_input_tokens": 20,
                                    "ephemeral_1h_input_tokens": 20}  # fmt: skip
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (2, 0)
    assert read(caller.ask(prompt, points)) == (40, 0)
    caller.clock.advance(5 * MINUTE)
    usage = caller.ask(prompt, points)
    assert read(usage) == (20, 20) and usage.cache_creation["ephemeral_5m_input_tokens"] == 20
    caller.clock.advance(60 * MINUTE)
    assert read(caller.ask(prompt, points)) == (0, 40)


@pytest.mark.parametrize(("ttl", "minutes"), [("5m", 5), ("1h", 60)])
def test_a_lifetime_begins_anew_at_each_use_and_ends(ttl: str, minutes: int) -> None:
    caller = Caller()
    prompt = tokens(30)
    caller.ask(prompt, at(20, ttl=ttl))
    for _ in range(3):
        caller.clock.advance(minutes * MINUTE - 1)
        assert read(caller.ask(prompt, at(20))) == (20, 0), "the entry's own lifetime is renewed"
    caller.clock.advance(minutes * MINUTE)
    request_id = caller.add(prompt, 3, cache_control=at(20))
    caller.step()
    assert caller.engine.requests[request_id].miss.kind == "expired"
    caller.drain()
    assert read(caller.usages[request_id]) == (0, 20)


def test_a_request_that_marks_nothing_is_told_why_it_hit_nothing() -> None:
    caller = Caller()
    caller.ask(tokens(30), at(20))
    request_id = caller.add(tokens(30), 3)
    caller.step()
    assert caller.engine.requests[request_id].miss.kind == "unmarked"
    caller.drain()


def test_shorter_prefixes_than_the_minimum_are_not_kept() -> None:
    caller = Caller({"cache.min_cacheable_tokens": 24})
    prompt = tokens(30)
    assert read(caller.ask(prompt, at(20))) == (0, 0), "no error, and nothing is written"
    assert read(caller.ask(prompt, at(20, 24))) == (0, 24)
    assert read(caller.ask(prompt, at(24))) == (24, 0)


def test_a_breakpoint_inside_a_block_keeps_the_blocks_before_it() -> None:
    caller = Caller()
    assert read(caller.ask(tokens(30), at(22))) == (0, 20)
    assert read(caller.ask(tokens(30), at(23))) == (20, 0)


@pytest.mark.parametrize("index", PREFIX_INDEXES)
@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_what_is_kept_is_evicted_last(index: str, eviction: str) -> None:
    """Soft: prompts that fill the cache many times over leave it, one that needs all does not."""
    caller = Caller({"cache.hbm_budget_mib": pages(34), "cache.index": index,
                     "cache.eviction": eviction})  # fmt: skip
    prompt = tokens(42)
    caller.ask(prompt, at(40))
    for seed in range(1, 6):
        caller.ask(tokens(60, seed))
    pool = caller.engine.stack.pool
    assert pool.num_evicted_rows > 20
    assert read(caller.ask(prompt, at(40))) == (40, 0)
    kept = pool.eviction_order(0)[-10:]
    assert all(caller.engine.lifetimes.keeps(pool.row_of[block].chain_key) for block in kept)
    caller.ask(tokens(122, 8))
    assert read(caller.ask(prompt, at(40)))[0] < 40, "nothing else could go"
    caller.clock.advance(5 * MINUTE)
    for seed in range(1, 6):
        caller.ask(tokens(60, seed))
    assert read(caller.ask(prompt, at(40))) == (0, 40), "a prefix that is over goes as any other"


def test_a_kept_prefix_comes_back_from_a_tier() -> None:
    caller = Caller({"cache.hbm_budget_mib": pages(34), "tiers.dram_mib": 0.5})
    prompt = tokens(42)
    caller.ask(prompt, at(40))
    caller.ask(tokens(122, 8))
    assert read(caller.ask(prompt, at(40))) == (40, 0)
    assert caller.engine.fetcher.counters.num_loaded_pages > 0
    caller.ask(tokens(122, 8))
    assert read(caller.ask(prompt)) == (0, 0), "unmarked text is not fetched either"


def test_a_preempted_request_is_counted_once() -> None:
    caller = Caller({"cache.hbm_budget_mib": pages(40), "scheduling.admit_whole_prompt": False})
    prompts = [tokens(40, seed) for seed in range(4)]
    ids = [caller.add(prompt, 40, cache_control=at(32)) for prompt in prompts]
    caller.drain()
    assert caller.engine.metrics.num_preemptions > 0
    for request_id in ids:
        assert read(caller.usages[request_id]) == (0, 32)


def test_it_outlives_a_rebuild_and_a_change_of_format() -> None:
    caller = Caller({"tiers.dram_mib": 0.5})
    prompt = tokens(30)
    caller.ask(prompt, at(20))
    caller.engine.stack.pool.drop_idle_rows()
    caller.engine.apply({"cache.hbm_budget_mib": 0.3})
    assert len(caller.engine.lifetimes) == 1
    assert read(caller.ask(prompt, at(20))) == (20, 0), "from the tier, as it was promised"
    caller.engine.apply({"cache.k_format": "int8", "cache.v_format": "int8"})
    request_id = caller.add(prompt, 3, cache_control=at(20))
    caller.drain()
    assert read(caller.usages[request_id]) == (20, 0), "the re-encoded blocks"


@pytest.mark.parametrize("index", PREFIX_INDEXES)
@pytest.mark.parametrize("mode", ["automatic", "explicit"])
@pytest.mark.parametrize("tiers", [{}, {"tiers.dram_mib": 0.5}])
def test_tenants_never_share(index: str, mode: str, tiers: dict[str, Any]) -> None:
    """Equal prompts, breakpoints and all: 0 hits of another tenant's, in HBM and below."""
    caller = Caller({"cache.index": index, "cache.prompt_caching": mode,
                     "cache.partial_hits": True, **tiers})  # fmt: skip
    prompt = tokens(30)
    caller.ask(prompt, at(20), salt="one")
    assert read(caller.ask(prompt, at(20), salt="two")) == (0, 20)
    caller.engine.stack.pool.drop_idle_rows()  # to the tier, where there is one
    assert read(caller.ask(prompt, at(20), salt="three")) == (0, 20)
    found = 20 if mode == "explicit" else 28
    assert caller.ask(prompt, at(20), salt="one").cache_read_input_tokens == (found if tiers else 0)
    assert caller.ask(prompt, at(20), salt="three").cache_read_input_tokens >= 20


REFUSED = [
    ({"cache_control": at(4, 8, 12, 16, 20)},
     "cache_control has 5 breakpoints: at most 4 are allowed"),
    ({"cache_control": at(40)}, "cache_control at = 40 is beyond the prompt: it has 30 tokens"),
    ({"cache_control": at(8) + at(16, ttl="1h")},
     "cache_control has 5m at 8 before 1h at 16: longer lifetimes come before shorter ones"),
    ({"cache_control": at(8, 8)}, "cache_control has two breakpoints at 8: give one"),
    ({"cache_control": [CacheBreakpoint(message=0)]},
     "cache_control names a message, but there are none: give at instead"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "told"), REFUSED)
def test_a_request_that_cannot_be_is_refused_in_one_sentence(given: Any, told: str) -> None:
    caller = Caller()
    with pytest.raises(RequestError) as refused:
        caller.engine.add_request(RequestSpec(token_ids=tokens(30), **given))
    assert str(refused.value) == told


@pytest.mark.parametrize(("given", "told"), [
    ({"at": 8, "ttl": "10m"}, "cache_control ttl = '10m' is no lifetime: give 5m or 1h"),
    ({"at": 0}, "cache_control at = 0 is out of range: 1 token or more"),
    ({"message": -1}, "cache_control message = -1: messages count from 0"),
    ({}, "a cache_control breakpoint needs either at (tokens) or message"),
    ({"at": 8, "message": 1}, "a cache_control breakpoint needs either at (tokens) or message"),
])  # fmt: skip
def test_a_breakpoint_that_cannot_be_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError) as refused:
        CacheBreakpoint(**given)
    assert str(refused.value) == told


def test_messages_are_checked_as_they_are_counted() -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    with pytest.raises(RequestError) as refused:
        RequestSpec(messages=messages, cache_control=[CacheBreakpoint(message=2)])
    assert str(refused.value) == (
        "cache_control message = 2 is beyond the prompt: it has 2 messages, counted from 0"
    )
    with pytest.raises(RequestError) as refused:
        RequestSpec(messages=messages, cache_control=[CacheBreakpoint(message=0), *at(9)])
    assert str(refused.value) == (
        "cache_control mixes at and message: count all breakpoints in one way"
    )


def test_a_spec_travels_with_its_breakpoints() -> None:
    spec = RequestSpec(token_ids=[1, 2, 3], cache_control=at(2, ttl="1h"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=RequestSpec) == spec
