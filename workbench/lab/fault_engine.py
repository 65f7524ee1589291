"""Part of `workbench bench tiers`: an engine's requests while its tiers go through the faults.

A small random model in fp32, so that every token has to be the naive loop's (invariant I9), except
where that loop's two best logits are closer than 1e-3. HBM, DRAM and disk are too small for the
prompts, so that most requests ask a store and objects below. A *lost* request never ends, or ends
with an error.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.clock import RealClock
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.bench_runs import random_prompts, submit
from workbench.lab.fault_kinds import Fault, Ladder, ladders
from workbench.model.naive import naive_greedy
from workbench.model.random_launch import random_model
from workbench.request import RequestStatus

Progress = Callable[[str], None]
MOST_WAIT_S = 60.0
NEAR_TIE = 1e-3
SMALL = {
    "cache.hbm_budget_mib": 0.0625, "cache.block_size": 4, "cache.k_format": "fp32",
    "cache.v_format": "fp32", "model.max_model_len": 128,
    "tiers.dram_mib": 0.03, "tiers.disk_mib": 0.25, "tiers.gate": False, "tiers.write": "through",
}  # fmt: skip


@dataclass(frozen=True)
class ServePlan:
    """Requests during each fault and after it, of how many prompts of which length."""

    num_requests: int = 20
    num_prompts: int = 24
    prompt_tokens: int = 60
    new_tokens: int = 6


QUICK = ServePlan(num_requests=3, num_prompts=8)


@dataclass
class Served:
    """What became of the requests; `num_cached_tokens` of all their prompts' came from a cache."""

    num_requests: int = 0
    num_lost: int = 0
    num_wrong_tokens: int = 0
    num_near_ties: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_loaded_pages: int = 0


def serve_under_faults(progress: Progress, folder: Path, plan: ServePlan) -> Served:
    """Run the ladder with a store and objects below an engine, through each of its faults."""
    model, served = random_model(2), Served()
    prompts = random_prompts(250, plan.num_prompts, plan.prompt_tokens, 0)
    expected = [naive_greedy(model.decoder, prompt, plan.new_tokens) for prompt in prompts]
    ladder = ladders(folder, page_bytes=2048)[0]
    with ladder.running() as settings:
        config = dataclasses.replace(EngineConfig(), tiers=settings)
        engine = Engine(replace_settings(config, SMALL), model)
        try:
            _Runs(engine, prompts, expected, served).through(ladder, plan.num_requests)
            served.num_loaded_pages = engine.fetch_counters.num_loaded_pages
        finally:
            engine.close()
    progress(f"an engine's requests under faults: {served.num_requests}, {served.num_lost} lost")
    return served


class _Runs:
    def __init__(
        self,
        engine: Engine,
        prompts: list[list[int]],
        expected: list[tuple[list[int], list[float]]],
        served: Served,
    ) -> None:
        self.engine, self.served, self.clock = engine, served, RealClock()
        self.prompts, self.expected = prompts, expected
        self.rng = np.random.default_rng(0)

    def through(self, ladder: Ladder, num_requests: int) -> None:
        """Each prompt once, then requests for random ones during each fault and after it."""
        calm = Fault("none")
        for number in range(len(self.prompts)):
            self._request(number, calm)
        for fault in ladder.faults:
            if fault.missing():
                continue
            with fault.active(self.engine.hierarchy):
                self._several(num_requests, fault)
            self._several(num_requests, calm)

    def _several(self, count: int, fault: Fault) -> None:
        for _ in range(count):
            self._request(int(self.rng.integers(len(self.prompts))), fault)

    def _request(self, number: int, fault: Fault) -> None:
        """One request to its end, with a blow before each of its steps."""
        engine, served, tokens = self.engine, self.served, list[int]()
        new, margins = self.expected[number]
        request_id = submit(engine, self.prompts[number], len(new))
        request = engine.requests[request_id]
        served.num_requests += 1
        started_s = self.clock.now_s()
        while engine.has_work() and self.clock.now_s() - started_s < MOST_WAIT_S:
            fault.strike(engine.hierarchy, self.rng)
            for output in engine.step():
                tokens += output.new_token_ids
        if request.status is not RequestStatus.FINISHED_LENGTH or len(tokens) != len(new):
            served.num_lost += 1
            engine.abort(request_id)
            return
        served.num_prompt_tokens += request.num_prompt_tokens
        served.num_cached_tokens += request.num_cached_tokens
        for token, right, margin in zip(tokens, new, margins, strict=True):
            if token != right:  # from here on it goes on from another text
                served.num_near_ties += margin < NEAR_TIE
                served.num_wrong_tokens += margin >= NEAR_TIE
                break
