"""Prompt caching from outside: through the client, by messages, in workloads and in the views."""

from typing import Any

import pytest

from tests.engine.harness import build
from workbench.cache_control import CacheBreakpoint, moved_breakpoints
from workbench.client import EngineClient
from workbench.clock import ManualClock
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.errors import RequestError
from workbench.request import RequestSpec, SamplingParams

SHORT = SamplingParams(max_tokens=2, ignore_eos=True)
EXPLICIT = {"cache.prompt_caching": "explicit", "cache.min_cacheable_tokens": 8,
            "cache.block_size": 4}  # fmt: skip


def run(engine: Engine, spec: RequestSpec) -> Any:
    request_id = engine.add_request(spec)
    usage = None
    while engine.has_work():
        for output in engine.step():
            usage = output.usage or usage
    return request_id, usage


def test_breakpoints_move_with_the_turns_in_front_of_them() -> None:
    by_message = [CacheBreakpoint(message=0, ttl="1h"), CacheBreakpoint(message=2)]
    assert [point.message for point in moved_breakpoints(by_message, 3)] == [3, 5]
    assert moved_breakpoints([CacheBreakpoint(at=7)], 3) == [CacheBreakpoint(at=7)]


def test_a_viewer_sees_what_was_read_and_what_is_left() -> None:
    clock = ManualClock()
    engine = build(EXPLICIT, clock=clock)
    points = [CacheBreakpoint(at=12, ttl="1h"), CacheBreakpoint(at=24)]
    spec = RequestSpec(token_ids=list(range(30)), sampling=SHORT, cache_control=points)
    run(engine, spec)
    clock.advance(240.0)
    run(engine, RequestSpec(token_ids=list(range(30)), sampling=SHORT))
    clock.advance(30.0)
    plain, marked = engine.snapshot().requests[:2]
    assert plain.usage is None and plain.breakpoints == []
    assert marked.usage.cache_creation_input_tokens == 24
    assert [(point.at, point.ttl, point.left_s) for point in marked.breakpoints] == [
        (12, "1h", 3330.0), (24, "5m", 30.0),
    ]  # fmt: skip
    clock.advance(30.0)
    views = engine.snapshot().requests[1].breakpoints
    assert [point.left_s for point in views] == [3300.0, None]
    engine.close()


@pytest.fixture(scope="module")
def client() -> Any:
    config = replace_settings(EngineConfig(), EXPLICIT | {"cache.hbm_budget_mib": 1.0})
    started = EngineClient.start(config, random_layers=2, wait=True)
    yield started
    started.close()


def ended(client: EngineClient, request_id: str) -> Any:
    for _ in range(2000):
        entry = client.outputs(request_id)
        if entry.is_finished:
            return entry
        client.snapshot()
    raise AssertionError("it never ended")


def test_through_the_client_usage_comes_with_the_end(client: EngineClient) -> None:
    spec = RequestSpec(token_ids=list(range(30)), sampling=SHORT,
                       cache_control=[CacheBreakpoint(at=24)])  # fmt: skip
    first = ended(client, client.submit(spec)).usage
    assert (first.cache_read_input_tokens, first.cache_creation_input_tokens) == (0, 24)
    again = ended(client, client.submit(spec)).usage
    assert (again.cache_read_input_tokens, again.input_tokens) == (24, 6)
    with pytest.raises(RequestError, match="at = 24 is beyond the prompt: it has 5 tokens"):
        client.submit(RequestSpec(token_ids=[1] * 5, cache_control=[CacheBreakpoint(at=24)]))


def test_lines_of_two_tenants_hit_nothing_of_each_other(client: EngineClient) -> None:
    line = (
        b'{"token_ids": '
        + str(list(range(100, 130))).encode()
        + (b', "max_tokens": 2, "cache_control": [{"at": 24}]}')
    )
    reads = []
    for tenant in ("a", "b", "a"):
        (request_id,) = client.load_jsonl(line, tenant)
        reads.append(ended(client, request_id).usage.cache_read_input_tokens)
    assert reads == [0, 0, 24]


def test_a_message_ends_where_the_template_ends_it(client: EngineClient) -> None:
    messages = [{"role": "system", "content": "You are brief and kind."},
                {"role": "user", "content": "Why is the sky blue at noon?"}]  # fmt: skip
    points = [CacheBreakpoint(message=0, ttl="1h"), CacheBreakpoint(message=1)]
    spec = RequestSpec(messages=messages, sampling=SHORT, cache_control=points)
    made = ended(client, client.submit(spec)).usage.cache_creation
    assert made["ephemeral_1h_input_tokens"] > 0 and made["ephemeral_5m_input_tokens"] > 0
    other = [messages[0], {"role": "user", "content": "And red in the evening?"}]
    spec = RequestSpec(messages=other, sampling=SHORT, cache_control=points)
    usage = ended(client, client.submit(spec)).usage
    assert usage.cache_read_input_tokens == made["ephemeral_1h_input_tokens"]
