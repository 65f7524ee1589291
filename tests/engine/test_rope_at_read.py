"""Keys stored before RoPE: the naive loop's tokens, compact positions, and names of their own."""

import pytest
import torch
from kvkernels.common import rotate

from tests.engine.harness import Runner, assert_naive, build, model, pages, spec, tokens
from tests.equivalence.test_naive import TIERS, serve
from workbench.cache.rope_mode import rope_mode
from workbench.config import EngineConfig, replace_settings
from workbench.engine.cache_stack import format_label, make_root_key
from workbench.request import Request

COMPACT = {"retention.positions": "compact"}
WHOLE = {"scheduling.chunk_tokens": 64, "scheduling.token_budget": 64}


@pytest.mark.parametrize("grouping, preemption", [("model", "swap"), ("head", "recompute")])
def test_ranks_of_all_tokens_are_their_positions(grouping: str, preemption: str) -> None:
    """Nothing is evicted, so rotation at read must give the naive loop's tokens (I9)."""
    runner = Runner(build(COMPACT | TIERS | {
        "cache.hbm_budget_mib": pages(32), "scheduling.admit_whole_prompt": False,
        "scheduling.preemption": preemption, "cache.grouping": grouping}))  # fmt: skip
    serve(runner, seed=9, num_requests=6, longest=40)
    assert runner.engine.metrics.num_preemptions > 0
    runner.engine.close()


def test_the_way_of_rotation_changes_in_the_middle_of_streams() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(64)}))
    prompts = [tokens(30, 1), tokens(30, 1)[:20] + tokens(12, 2)]
    ids = [runner.add(prompt, 24) for prompt in prompts]
    runner.step(4)
    for positions in ("compact", "original", "compact"):
        report = runner.engine.apply({"retention.positions": positions})
        assert report.kinds == {"retention.positions": "rebuild"}
        runner.step(5)
    runner.drain()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert_naive(model(), prompt, runner.outputs[request_id])


@pytest.mark.parametrize("positions", ["compact", "original"])
@pytest.mark.parametrize("grouping, split", [("head", "ada")])
def test_after_an_eviction_positions_are_ranks(positions: str, grouping: str, split: str) -> None:
    """As StreamingLLM: kept keys and the query are rotated by their place in the cache."""
    runner = Runner(build(WHOLE | {
        "retention.policy": "attention-mass", "retention.budget_tokens": 16,
        "retention.sink_tokens": 4, "retention.window_tokens": 4, "retention.level": "token",
        "retention.split": split, "cache.grouping": grouping,
        "retention.positions": positions}))  # fmt: skip
    prompt = tokens(40)
    request_id = runner.add(prompt, 2)
    runner.step()
    stack = runner.engine.stack
    blocks = stack.manager.requests[request_id]
    kept = {(layer, head): blocks.positions(group.index).tolist()
            for group in stack.geometry.groups
            for layer in group.layers for head in group.kv_heads}  # fmt: skip
    assert all(len(places) < 40 for places in kept.values())
    logits = []
    run = stack.runner.run
    stack.runner.run = lambda *args, **more: logits.append(run(*args, **more)) or logits[-1]
    runner.step()
    text = prompt + runner.outputs[request_id][:1]
    wanted = _logits_by_rank(text, kept, compact=positions == "compact")
    torch.testing.assert_close(logits[0][0][0], wanted, atol=1e-4, rtol=1e-4)


def _logits_by_rank(
    text: list[int], kept: dict[tuple[int, int], list[int]], *, compact: bool
) -> torch.Tensor:
    """Logits of the last token, which sees `kept` and itself at ranks; the others see all."""
    loaded, count = model(), len(text)
    cos, sin = loaded.decoder.rope_tables(count)
    share = loaded.arch.num_heads // loaded.arch.num_kv_heads

    def turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return rotate(x, cos[places], sin[places])

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        everywhere = torch.arange(count)
        for head in range(q.shape[1]):
            own = head // share
            rows = [*kept[layer, own], count - 1]
            scores = turned(q[:, head], everywhere) @ turned(k[:, own], everywhere).T
            scores = (scores * q.shape[-1] ** -0.5).masked_fill(
                torch.ones(count, count).triu(1) > 0, -torch.inf)  # fmt: skip
            out[:, head] = scores.softmax(-1) @ v[:, own]
            places = torch.arange(len(rows)) if compact else torch.tensor(rows)
            last = turned(q[-1:, head], places[-1:]) @ turned(k[rows, own], places).T
            out[-1, head] = (last * q.shape[-1] ** -0.5).softmax(-1)[0] @ v[rows, own]
        return out.flatten(1)

    with torch.inference_mode():
        return loaded.decoder.forward(
            torch.tensor(text), torch.arange(count), attend, torch.tensor([count - 1]),
            rope="at_read",
        )[0]  # fmt: skip


def test_what_is_stored_before_rope_has_names_of_its_own() -> None:
    """Neither the prefix key nor the tag of such a page is that of a rotated one."""
    plain = EngineConfig()
    compact = replace_settings(plain, COMPACT)
    assert (rope_mode(plain), rope_mode(compact)) == ("stored", "compact")
    request = Request("r", spec(tokens(8)), tokens(8), 0.0)
    keys = [make_root_key(config, model())(request) for config in (plain, compact)]
    assert keys[0] != keys[1]
    assert format_label(compact) == format_label(plain) + "~pre-rope"


def test_nothing_is_indexed_once_ranks_differ_from_positions() -> None:
    runner = Runner(
        build(
            COMPACT
            | {
                "retention.policy": "sink+window",
                "retention.sink_tokens": 4,
                "retention.budget_tokens": 16,
                "retention.window_tokens": 8,
            }
        )
    )
    request_id = runner.add(tokens(20), 60)
    runner.step(30)
    assert not runner.engine.stack.manager.requests[request_id].hashing
    before = len(runner.engine.stack.pool.index)
    runner.drain()
    assert len(runner.engine.stack.pool.index) <= before
