"""Hit tokens of each prefix index, with and without partial hits, on prompts one after another.

The engine's own pool, manager, index and copies serve every prompt of a list, without a model: each
is admitted, counted as computed, and let go, so that what it leaves is what the next one may find.
Answers are counted as computed too, but for their last token, as in the engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.cache.block_pool import BlockPool
from workbench.cache.geometry import build_geometry
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_roles import PageRoles
from workbench.cache.page_store import PageStore
from workbench.engine.builtin import builtin_registry
from workbench.engine.process.arrivals import with_answer
from workbench.lab.figures import Figure
from workbench.lab.traces import TraceScale, read_trace
from workbench.lab.workloads import make_workload
from workbench.model.help_text import topic_tokens
from workbench.model.tokenizer import Tokenizer
from workbench.request import Request, RequestSpec
from workbench.settings.cache import PREFIX_INDEXES

TRACE_SCALE = 1 / 32  # a block of 512 tokens becomes 16
TRACE_BLOCK_SIZES = (16, 64)  # aligned with the trace's blocks, and four of them
CHAT_BLOCK_SIZES = (16, 32)
MOST_PROMPT_TOKENS = 8192
CACHE_TOKENS = 48_000  # 3,000 blocks of 16
NUM_CHATS, NUM_TURNS, ANSWER_TOKENS = 30, 6, 80  # in a chat's turns, and in an answer
QUICK_PROMPTS = 40


@dataclass(frozen=True)
class Hits:
    """What prompts found: tokens of full blocks and of beginnings, of all their tokens."""

    num_hit_tokens: int
    num_partial_tokens: int
    num_tokens: int
    num_too_long: int  # prompts that the cache could not hold


@dataclass(frozen=True)
class Served:
    """A prompt's tokens, and those of its answer (none: only the prompt is computed)."""

    prompt: list[int]
    answer: list[int] = field(default_factory=list)


def serve(requests: Sequence[Served], *, index: str, partial: bool, block_size: int,
          cache_tokens: int = CACHE_TOKENS) -> Hits:  # fmt: skip
    """Serve prompts one after another with an index and count what they found in the cache."""
    manager = _manager(index, block_size, cache_tokens)
    manager.lookup.partial_hits = partial
    found = beginnings = total = too_long = 0
    for number, served in enumerate(requests):
        prompt, answer = served.prompt, served.answer
        total += len(prompt)
        num_computed = len(prompt) + max(0, len(answer) - 1)
        if not manager.fits_ever(num_computed):
            too_long += 1
            continue
        request = Request(str(number), RequestSpec(token_ids=prompt), prompt, 0.0)
        hit = manager.find_prefix(request)
        if not manager.admit(request, hit, num_computed - hit.num_tokens):
            raise RuntimeError(f"prompt {number} fits the empty cache and was not admitted")
        found += hit.num_tokens
        beginnings += hit.num_partial_tokens
        request.token_ids += answer
        manager.commit(request, num_computed - hit.num_tokens)
        manager.publish(request, num_computed)
        manager.free(request)
        manager.pool.step += 1
    return Hits(found, beginnings, total, too_long)


def _manager(index: str, block_size: int, cache_tokens: int) -> KVCacheManager:
    """A cache of one small layer: what is found does not depend on how large a page is."""
    geometry = build_geometry("model", num_layers=1, num_kv_heads=1, head_dim=16)
    spec = geometry.groups[0].page_spec(16, block_size, "bf16", "bf16")
    num_blocks = max(1, cache_tokens // block_size)
    pool = BlockPool(
        num_slabs=1, slab_bytes=num_blocks * spec.page_bytes, smallest_page_bytes=spec.page_bytes,
        index=builtin_registry().create("index", index, _ignore, _ignore), before_evict=_ignore,
    )  # fmt: skip
    return KVCacheManager(
        pool=pool, geometry=geometry, roles=PageRoles(block_size, [pool.class_of(spec)]),
        max_model_len=MOST_PROMPT_TOKENS + block_size, format_label="bf16",
        root_key=lambda request: b"reuse", store=PageStore(num_blocks * spec.page_bytes, "cpu"),
    )  # fmt: skip


def _ignore(row: Any) -> None:
    """Nobody listens."""


def trace_prompts(path: Path, max_prompts: int) -> list[Served]:
    """Prompts of a trace in order of arrival, a trace's block of 512 tokens as 16."""
    scale = TraceScale(
        length=TRACE_SCALE, max_requests=max_prompts, max_prompt_tokens=MOST_PROMPT_TOKENS
    )
    return [Served(arrival.spec.token_ids or []) for arrival in read_trace(path, scale).arrivals]


def chat_prompts(tokenizer: Tokenizer) -> list[Served]:
    """Prompts of the workload `shared_chat`: questions under one system prompt."""
    plan = make_workload("shared_chat")
    return [Served(tokenizer.chat(arrival.spec.messages or [])) for arrival in plan.arrivals]


def turn_prompts(tokenizer: Tokenizer) -> list[Served]:
    """Prompts of the workload `multi_turn`, one turn of every chat after the other.

    Answers are pieces of Python's help topics; as in the engine, a later turn takes up an answer's
    text, which need not fall into the same tokens again.
    """
    plan = make_workload("multi_turn", num_chats=NUM_CHATS, num_turns=NUM_TURNS)
    text = topic_tokens(tokenizer, 0, len(plan.arrivals) * ANSWER_TOKENS)
    served, chats = list[Served](), list[list[dict[str, str]]]()
    for number, arrival in enumerate(plan.arrivals):
        earlier = chats[arrival.follows] if arrival.follows >= 0 else []
        messages = [*earlier, *(arrival.spec.messages or [])]
        answer = text[number * ANSWER_TOKENS : (number + 1) * ANSWER_TOKENS]
        served.append(Served(tokenizer.chat(messages), answer))
        chats.append(with_answer(messages, tokenizer.decode(answer)))
    return served


def figures_of(
    name: str,
    prompts: Sequence[Served],
    block_sizes: Sequence[int],
    source: str,
    progress: Callable[[str], None],
    *,
    quick: bool,
) -> list[Figure]:
    """Hit tokens of every index, whole blocks alone and with the beginnings of others."""
    prompts = prompts[:QUICK_PROMPTS] if quick else prompts
    figures = []
    for block_size in block_sizes:
        for index in PREFIX_INDEXES:
            for partial in (False, True):
                hits = serve(prompts, index=index, partial=partial, block_size=block_size)
                figure = _figure(name, hits, index, partial, block_size, source, len(prompts))
                figures.append(figure)
                progress(f"{figure.name}: {hits.num_hit_tokens:,} of {hits.num_tokens:,} tokens")
    return figures


def _figure(name: str, hits: Hits, index: str, partial: bool, block_size: int, source: str,
            num_prompts: int) -> Figure:  # fmt: skip
    told = f"{source}: {num_prompts:,} prompts, {hits.num_tokens:,} tokens, blocks of {block_size}"
    told += f", {CACHE_TOKENS:,} tokens of cache"
    if partial:
        told += f"; {hits.num_partial_tokens:,} in beginnings of blocks"
    if hits.num_too_long:
        told += f"; {hits.num_too_long} prompts too long, not served"
    how = "partial" if partial else "full"
    return Figure(
        name=f"hit_tokens_{name}_{index}_{how}_{block_size}",
        value=hits.num_hit_tokens,
        unit="tokens",
        note=told,
    )
