"""A small engine over a random model, stepped under all invariants, beside the naive loop."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.load import LoadedModel
from workbench.model.naive import naive_logits
from workbench.model.random_launch import random_model
from workbench.request import RequestSpec, RequestStatus, SamplingParams

MIB = 2**20
NEAR_TIE = 1e-3

SMALL: dict[str, Any] = {
    "cache.hbm_budget_mib": 0.25, "cache.block_size": 4, "cache.k_format": "fp32",
    "cache.v_format": "fp32", "scheduling.chunk_tokens": 16, "scheduling.token_budget": 32,
    "scheduling.watermark": 0.0, "tiers.gate": False,
}  # fmt: skip


@functools.cache
def model(num_layers: int = 2, seed: int = 0) -> LoadedModel:
    return random_model(num_layers, seed)


def pages(count: int, num_layers: int = 2, block_size: int = 4) -> float:
    """A budget in MiB that holds exactly `count` fp32 pages of the random model."""
    return count * num_layers * 2 * 16 * block_size * 2 * 4 / MIB


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 250, count).tolist()


def build(
    changes: dict[str, Any] | None = None,
    num_layers: int = 2,
    loaded: LoadedModel | None = None,
    **options: Any,
) -> Engine:
    config = replace_settings(EngineConfig(), SMALL | (changes or {}))
    return Engine(config, loaded or model(num_layers), verify_bytes=True, **options)


def spec(prompt: list[int], max_tokens: int = 16, **more: Any) -> RequestSpec:
    names = ("temperature", "top_k", "top_p", "seed", "sample_index", "ignore_eos")
    sampling = {name: more.pop(name) for name in names if name in more}
    sampling = {"ignore_eos": True} | sampling
    return RequestSpec(
        token_ids=list(prompt), sampling=SamplingParams(max_tokens=max_tokens, **sampling), **more
    )


def page_formats(engine: Engine, request_id: str, group: int = 0) -> list[str]:
    """The K format of each page of a request that holds slots."""
    stack = engine.stack
    blocks = stack.manager.requests[request_id]
    used = -(-int(blocks.stored_len[group]) // engine.config.cache.block_size)
    return [stack.pool.classes[cls].k_format
            for cls in stack.pool.page_classes(blocks.table[group, :used])]  # fmt: skip


class Runner:
    """Steps an engine, checks it after each step, and keeps what it said."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outputs: dict[str, list[int]] = {}
        self.status: dict[str, str] = {}
        self.errors: dict[str, str] = {}

    def add(self, *args: Any, **more: Any) -> str:
        request_id = self.engine.add_request(spec(*args, **more))
        self.outputs[request_id] = []
        return request_id

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for output in self.engine.step():
                self.outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
                self.status[output.request_id] = output.status
                self.errors[output.request_id] = output.error
            self.check()

    def check(self) -> None:
        view = self.engine.check_integrity()
        assert view.ok, view.message

    def until(self, condition: Callable[[], Any], limit: int = 2000) -> None:
        for _ in range(limit):
            if condition():
                return
            self.step()
        raise AssertionError("it never happened")

    def drain(self, limit: int = 4000) -> None:
        """Run until nothing is left; nothing may stay held."""
        for _ in range(limit):
            if not self.engine.has_work():
                break
            self.step()
        else:
            raise AssertionError("requests never ended (I8)")
        self.step()
        assert_idle(self.engine)

    def one(self, prompt: list[int], max_tokens: int = 16, **more: Any) -> list[int]:
        """Run one request alone to its end."""
        request_id = self.add(prompt, max_tokens, **more)
        self.drain()
        assert self.status[request_id] == RequestStatus.FINISHED_LENGTH, self.errors
        return self.outputs[request_id]


def assert_idle(engine: Engine) -> None:
    assert not engine.has_work()
    assert not (engine.stack.pool.ref_cnt > 0).any(), "blocks are held although nothing runs"
    assert engine.fetcher.num_pending == engine.fetcher.num_held == 0
    assert not engine.fetcher.swaps._records


def assert_naive(loaded: LoadedModel, prompt: list[int], output: list[int]) -> None:
    """I9, in one pass: each token is the argmax after the naive loop's own prefix."""
    logits = naive_logits(loaded.decoder, prompt + output[:-1])[len(prompt) - 1 :]
    for at, (row, token) in enumerate(zip(logits, output, strict=True)):
        best = row.topk(2)
        if int(best.indices[0]) != token:
            margin = float(best.values[0] - best.values[1])
            assert margin < NEAR_TIE, f"token {at} differs with a margin of {margin}"
            return
