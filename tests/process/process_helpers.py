"""What the tests of this folder share."""

import time
from collections.abc import Callable

from workbench.client import EngineClient
from workbench.config import EngineConfig, replace_settings
from workbench.engine.process.journal import Entry
from workbench.request import RequestSpec, SamplingParams

LAYERS = 2


def small_config(**changes) -> EngineConfig:
    """A small cache and one thread, so that processes beside each other stay quick."""
    known = {"cache.hbm_budget_mib": 1.0, "cache.k_format": "fp32", "cache.v_format": "fp32"}
    dotted = {path.replace("__", "."): value for path, value in changes.items()}
    return replace_settings(EngineConfig(), {**known, "model.num_threads": 1, **dotted})


def prompt(text: str, max_tokens: int = 40, seed: int = 0, temperature: float = 0.0) -> RequestSpec:
    sampling = SamplingParams(
        max_tokens=max_tokens, seed=seed, temperature=temperature, ignore_eos=True
    )
    return RequestSpec(prompt=text, sampling=sampling)


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that takes as long as the machine needs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def finished(client: EngineClient, request_id: str) -> Entry:
    until(lambda: client.outputs(request_id).is_finished)
    return client.outputs(request_id)
