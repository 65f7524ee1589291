"""Requests, their text and their block tables as a viewer sees them."""

from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.request_blocks import RequestBlocks
from workbench.engine.views.cells import HbmCells
from workbench.request import Request, RequestStatus
from workbench.snapshot import RequestView, TextView

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

TEXT_TOKENS = 2000  # over all requests of a frame
TEXT_TOKENS_EACH, LEAST_TEXT_TOKENS = 512, 64
NUM_FINISHED = 6


def shown(engine: "Engine") -> list[Request]:
    """Running, then waiting, then the newest finished requests."""
    finished = list(engine.finished.values())[-NUM_FINISHED:]
    waiting = sorted(engine.scheduler.waiting, key=lambda request: request.sequence_number)
    return engine.scheduler.running + waiting + finished[::-1]


def tables(engine: "Engine", hbm: HbmCells) -> np.ndarray:
    """Cells of group 0's pages of every shown request, int32, concatenated."""
    pool = engine.stack.pool
    parts = [np.zeros(0, np.int32)]
    for request in shown(engine):
        blocks = engine.stack.manager.requests.get(request.request_id)
        if blocks is not None:
            ids = blocks.blocks(0)
            parts.append((hbm.first[ids // pool.stride] + ids % pool.stride).astype(np.int32))
    return np.concatenate(parts)


def views(engine: "Engine") -> list[RequestView]:
    """One view a shown request; those that run share the frame's limit of text."""
    left = TEXT_TOKENS
    num_running = max(1, len(engine.scheduler.running))
    each = min(TEXT_TOKENS_EACH, max(LEAST_TEXT_TOKENS, TEXT_TOKENS // num_running))
    found = []
    for request in shown(engine):
        text = None
        if left > 0 and not request.status.is_finished:
            text = text_view(engine, request, min(left, each))
            left -= len(text.pieces)
        found.append(_view(engine, request, text))
    return found


def _view(engine: "Engine", request: Request, text: TextView | None) -> RequestView:
    manager, pool = engine.stack.manager, engine.stack.pool
    blocks = manager.requests.get(request.request_id)
    pages = shared = needs = free = 0
    if blocks is not None:
        ids = blocks.blocks(0)
        pages, shared = len(ids), int((pool.ref_cnt[ids] > 1).sum())
    elif not request.status.is_finished:
        needs = manager.num_pages_for(engine.retainer.max_slots(request))
        free = pool.num_free(manager.classes[0])
    observer = engine.retainer.observers.get(request.request_id)
    ttft = itl = None
    if request.first_token_s is not None:
        ttft = (request.first_token_s - request.arrival_s) * 1e3
        steps = request.num_output_tokens - len(request.spec.resume_tokens) - 1
        if steps > 0:
            itl = (request.last_token_s - request.first_token_s) * 1e3 / steps
    return RequestView(
        request_id=request.request_id,
        label=request.spec.label,
        owner=request.owner,
        status=request.status.value,
        priority=request.spec.priority,
        num_prompt_tokens=request.num_prompt_tokens,
        num_tokens=request.num_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=request.num_output_tokens,
        num_preemptions=request.num_preemptions,
        num_pages=pages,
        num_shared_pages=shared,
        num_evicted_tokens=observer.num_evicted if observer else 0,
        kept_mass=observer.kept_share() if observer else None,
        ttft_ms=ttft,
        itl_ms=itl,
        needs_blocks=needs,
        free_blocks=free,
        miss=request.miss,
        error=request.error,
        text=text,
        usage=request.usage() if request.breakpoints else None,
        breakpoints=manager.lookup.breakpoint_views(request),
        page_tokens=[] if blocks is None else page_tokens(blocks),
    )


def page_tokens(blocks: RequestBlocks) -> list[list[int]]:
    """First and last token of each page of group 0; empty while no token is missing."""
    stored, size = int(blocks.stored_len[0]), blocks.block_size
    positions = blocks.pos[0]
    if not stored or positions[stored - 1] == stored - 1:
        return []
    first = np.arange(int(blocks.num_pages[0])) * size
    last = np.maximum(first, np.minimum(first + size, stored) - 1)
    found: list[list[int]] = np.stack([positions[first], positions[last]], axis=1).tolist()
    return found


def text_view(engine: "Engine", request: Request, limit: int) -> TextView:
    """The newest tokens of a request as text, with attention mass and evictions."""
    stream = engine.streams[request.request_id]
    start = max(0, request.num_tokens - limit)
    observer = engine.retainer.observers[request.request_id]
    # the first token is a sink and would outshine the rest
    rates = observer.rate(0, request.num_tokens)[start:]
    top = float(np.partition(rates, -2)[-2]) if len(rates) > 1 else 0.0
    mass = np.minimum(255 * np.sqrt(rates / top), 255) if top > 0 else np.zeros(len(rates))
    return TextView(
        start=start,
        pieces=stream.pieces[start:],
        mass=mass.astype(int).tolist(),
        evicted=(observer.evicted_share(start, request.num_tokens) == 1).astype(int).tolist(),
        num_prompt_tokens=request.num_prompt_tokens,
    )


def owners_of(engine: "Engine", block: int) -> list[tuple[Request, int, int]]:
    """(request, group, page index) of every table that holds a block."""
    found = []
    for request in engine.scheduler.running:
        if request.status is not RequestStatus.RUNNING:
            continue
        blocks = engine.stack.manager.requests[request.request_id]
        for group in range(len(engine.stack.specs.full)):
            for page in np.flatnonzero(blocks.blocks(group) == block):
                found.append((request, group, int(page)))
    return found
