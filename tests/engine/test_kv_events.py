"""What a router knows of HBM over engines, and the numbers of events for people."""

import msgspec

from tests.engine.harness import Runner, build, tokens
from workbench.engine.engine import Engine
from workbench.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from workbench.lab.random_changes import start_config
from workbench.model.random_launch import random_model


class Replay:
    """What a router would know of HBM: hash -> (parent, tokens, block size)."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple] = {}
        self.batches = 0

    def __call__(self, batch: KVEventBatch) -> None:
        wire = msgspec.msgpack.encode(batch)
        self.batches += 1
        for event in msgspec.msgpack.decode(wire, type=KVEventBatch).events:
            if getattr(event, "medium", "GPU") != "GPU":
                continue
            if isinstance(event, BlockStored):
                for key in event.block_hashes:
                    assert key not in self.known, "stored twice"
                    assert len(event.token_ids) == event.block_size
                    self.known[key] = (
                        event.parent_block_hash, tuple(event.token_ids), event.block_size
                    )  # fmt: skip
            elif isinstance(event, BlockRemoved):
                for key in event.block_hashes:
                    del self.known[key]  # KeyError: removed without having been stored
            else:
                assert isinstance(event, AllBlocksCleared)
                self.known.clear()


def index_of(engine: Engine) -> dict[bytes, tuple]:
    return {row.key: (row.parent_key, row.token_ids, engine.config.cache.block_size)
            for row in engine.stack.pool.index.rows()}  # fmt: skip


def test_a_subscriber_outlives_its_engine() -> None:
    """A new engine clears first: what the subscriber knows of the earlier one is void."""
    replay = Replay()
    for _ in range(2):  # the same rows are stored again
        engine = build(on_kv_events=replay)
        Runner(engine).one(tokens(40))
        assert replay.known == index_of(engine)
        assert len(replay.known) > 9
        engine.close()


def test_events_begin_with_the_engine_and_go_on_after_the_number_given() -> None:
    engine = Engine(start_config(), random_model(3), last_event_seq=41)
    first = engine.events_since(0)[0]
    assert (first.seq, first.kind, first.data) == (42, "engine", {"what": "started"})
    engine.close()
