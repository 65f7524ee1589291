"""Five faults planted into a live engine, to show that the invariants' checks find them."""

from collections.abc import Callable

import numpy as np

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.random_changes import START
from workbench.model.load import LoadedModel
from workbench.request import RequestSpec, SamplingParams


def leaked_reference(engine: Engine) -> None:
    """A block is touched, and no table holds it."""
    engine.stack.pool.touch(_hashed_block(engine))


def late_write(engine: Engine) -> None:
    """A write for an earlier owner lands in a block that was hashed since."""
    pool, store = engine.stack.pool, engine.stack.store
    at = int(pool.offset[_hashed_block(engine)])
    store.arena[at : at + 4] ^= 1


def wrong_hash(engine: Engine) -> None:
    """A block is reused for other tokens, but the index still leads to it under the old key."""
    row = engine.stack.pool.row_of[_hashed_block(engine)]
    assert row is not None, "a hashed block has a row"
    row.token_ids = tuple(token + 1 for token in row.token_ids)


def double_free(engine: Engine) -> None:
    """A running request's block is given back, and again when the request ends."""
    request = engine.scheduler.running[0]
    engine.stack.pool.free([int(engine.stack.manager.requests[request.request_id].table[0, 0])])
    engine.abort(request.request_id)


def stale_table(engine: Engine) -> None:
    """A table still names a block that has gone to another request."""
    first, second = engine.scheduler.running[:2]
    tables = engine.stack.manager.requests
    mine, other = tables[first.request_id], tables[second.request_id]
    mine.table[0, mine.num_pages[0] - 1] = other.table[0, other.num_pages[0] - 1]


PLANTED: dict[str, Callable[[Engine], None]] = {
    "leaked reference": leaked_reference,
    "late write": late_write,
    "wrong hash": wrong_hash,
    "double free": double_free,
    "stale table": stale_table,
}


def catch(name: str, model: LoadedModel) -> str:
    """Plant one fault into a fresh live engine; what the check said, or "" if it was missed."""
    engine = _live_engine(model)
    try:
        before = engine.check_integrity()
        if not before.ok:
            raise RuntimeError(f"the engine was broken before {name} was planted: {before.message}")
        try:
            PLANTED[name](engine)
        except RuntimeError as error:
            return str(error)
        return engine.check_integrity().message
    finally:
        engine.byte_guard = None
        engine.hierarchy.close()


def _live_engine(model: LoadedModel) -> Engine:
    """Three requests in the middle of decoding, two of them with a shared prefix."""
    config = replace_settings(EngineConfig(), START)
    engine = Engine(config, model, verify_bytes=True)
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 250, 20).tolist()
    for tail in (3, 5, 7):
        sampling = SamplingParams(max_tokens=40, ignore_eos=True)
        tokens = shared + rng.integers(0, 250, tail).tolist()
        engine.add_request(RequestSpec(token_ids=tokens, sampling=sampling))
    for _ in range(8):
        engine.step()
    return engine


def _hashed_block(engine: Engine) -> int:
    return engine.stack.pool.index.rows()[0].blocks[0]
