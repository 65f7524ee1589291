"""What the collector of reference cycles is spared, and what it still frees."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.engine.heap import settle_heap
from workbench.model.random_launch import random_model


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def engine() -> Engine:
    return Engine(replace_settings(EngineConfig(), {"cache.hbm_budget_mib": 1.0}), random_model(2))


def test_what_is_alive_is_no_work_for_the_collector_and_stays() -> None:
    kept = engine()
    before = len(gc.get_objects())
    settle_heap()
    assert gc.get_freeze_count() > before // 2
    assert len(gc.get_objects()) < before // 100
    assert kept.has_work() is False


def test_an_engine_that_was_frozen_goes_when_the_next_one_settles() -> None:
    first = engine()
    settle_heap()
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is not None  # frozen, and in a cycle: this is what settling has to undo
    second = engine()
    settle_heap()
    assert gone() is None and second is not None
