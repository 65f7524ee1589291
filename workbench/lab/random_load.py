"""A random workload: everything a user can do to an engine, in any order, with small sizes."""

import random
from collections import Counter
from typing import Any

import numpy as np

from workbench.cache_control import CacheBreakpoint
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.errors import CapacityError, RequestError, SettingError, TierError
from workbench.lab.random_changes import CHANGES, PURE, is_lossy
from workbench.request import Request, RequestOutput, RequestSpec, RequestStatus, SamplingParams
from workbench.spatial.hierarchy.faults import FAULTS, inject

ABORT_STATES = ("waiting", "loading", "prefill", "running", "preempted", "swapped")

PHASE_STEPS = 150  # exact and lossy settings take turns, so that tokens can be compared in between


class RandomLoad:
    """Drives one engine; `turn` does a few random things and steps once.

    `counts` holds what happened: applies by class, aborts by state, faults injected, refusals.
    The same seed gives the same decisions, though disk transfers end when the disk is ready.
    `folder`: where objects go; none is used without.
    """

    def __init__(
        self, engine: Engine, seed: int, *, max_requests: int = 12, folder: str = ""
    ) -> None:
        self.engine = engine
        self.counts: Counter[str] = Counter()
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.lossy: set[str] = set()  # requests that an inexact setting may have touched
        self.ended: list[str] = []  # finished as asked, oldest first
        self._rng = random.Random(seed)
        self._numpy = np.random.default_rng(seed)
        self._max_requests = max_requests
        self._turns = 0
        self._lossy_phase = False
        objects = [{"tiers.object_url": url} for url in ("", folder)] if folder else []
        self._options = CHANGES | {"hot": CHANGES["hot"] + objects}
        self._texts = [self._random_tokens(32) for _ in range(4)]

    def turn(self) -> None:
        """A random submission, abort, change or fault, then one step."""
        rng, engine = self._rng, self.engine
        if rng.random() < 0.5 and len(engine.requests) < self._max_requests:
            self.submit()
        if rng.random() < 0.1:
            self.abort()
        self._turns += 1
        if self._turns % PHASE_STEPS == 0:
            self._change_phase()
        elif rng.random() < 0.09:
            self.change(rng.choice(("hot", "recode", "rebuild")[:: 1 if self._lossy_phase else 2]))
        for _ in range(3 if rng.random() < 0.35 else 0):  # few of the damaged are asked for again
            self.damage()
        self.step()

    def step(self) -> None:
        """One engine step; collects the outputs."""
        for output in self.engine.step():
            self._collect(output)
        self._mark_lossy()

    # ---- what can happen

    def submit(self) -> None:
        """A request over a few shared texts, with random sampling, priority and tenant."""
        rng = self._rng
        tokens = rng.choice(self._texts)[: rng.randrange(33)]
        tokens = tokens + self._random_tokens(rng.randrange(1, 12))
        sampling = SamplingParams(
            max_tokens=rng.randrange(1, 48), ignore_eos=True, seed=rng.randrange(1000),
            temperature=rng.choice((0.0, 0.0, 0.0, 0.8)), top_k=rng.choice((0, 5)),
            top_p=rng.choice((1.0, 0.9)),
        )  # fmt: skip
        marked = [CacheBreakpoint(at=len(tokens), ttl=rng.choice(("5m", "1h")))]
        spec = RequestSpec(
            token_ids=tokens, priority=rng.randrange(3), salt=rng.choice(("", "", "tenant")),
            sampling=sampling, cache_control=rng.choice(([], marked)),
        )  # fmt: skip
        try:
            request_id = self.engine.add_request(spec)
        except RequestError:
            self.counts["refused_requests"] += 1
            return
        self.prompts[request_id], self.outputs[request_id] = tokens, []
        if sampling.temperature > 0 or is_lossy(self.engine.config):
            self.lossy.add(request_id)  # it may end within the step that begins it

    def abort(self) -> None:
        """Abort a request in the state that was aborted least so far."""
        by_state: dict[str, list[Request]] = {}
        for request in self.engine.requests.values():
            by_state.setdefault(state_of(self.engine, request), []).append(request)
        if not by_state:
            return
        state = min(by_state, key=lambda name: self.counts[f"abort_{name}"])
        request = self._rng.choice(by_state[state])
        self.engine.abort(request.request_id)
        self.counts[f"abort_{state}"] += 1

    def change(self, kind: str) -> None:
        """Preview and apply a random change of one class."""
        config = self.engine.config
        options = [
            each
            for each in self._options[kind]
            if self._changes(config, each) and (self._lossy_phase or not each.keys() & PURE.keys())
        ]
        self._apply(self._rng.choice(options))

    def _changes(self, config: EngineConfig, each: dict[str, Any]) -> bool:
        """Whether a change is one, and goes with the other settings."""
        try:
            return replace_settings(config, each) != config
        except SettingError:
            self.counts["refused_combinations"] += 1
            return False

    def _change_phase(self) -> None:
        """Switch between exact and lossy settings; a refused change is tried again next time."""
        self._lossy_phase = not self._lossy_phase
        if not self._lossy_phase:
            self._apply(
                {"cache.k_format": "fp32", "cache.v_format": "fp32", "cache.layer_plan": ""}
            )
            self._apply(
                {"retention.policy": "none", "retention.sparse": "off", "cache.reuse": "exact"}
            )
            self._apply({"tiers.retrieval": "all", "tiers.disk_codec": "none"})

    def _apply(self, changes: dict[str, Any]) -> None:
        try:
            promised = self.engine.preview(changes)
            report = self.engine.apply(changes)
        except (CapacityError, TierError):
            self.counts["refused_applies"] += 1
            return
        for name in ("kinds", "num_recoded_blocks", "num_evicted_blocks", "num_preempted_requests"):
            if getattr(promised, name) != getattr(report, name):
                raise RuntimeError(
                    f"the preview of {changes} promised {name} = {getattr(promised, name)}, and "
                    f"apply did {getattr(report, name)}"
                )
        for kind in set(report.kinds.values()):
            self.counts[f"apply_{kind}"] += 1
        self._mark_lossy()

    def damage(self) -> None:
        """Damage one entry of a tier, or the next write."""
        if inject(self.engine.hierarchy, self._rng.choice(FAULTS), self._numpy) is not None:
            self.counts["injected_faults"] += 1

    # ---- bookkeeping

    def _collect(self, output: RequestOutput) -> None:
        self.outputs[output.request_id] += output.new_token_ids
        if output.error:
            self.counts["failed_requests"] += 1
        if output.status in (RequestStatus.FINISHED_LENGTH, RequestStatus.FINISHED_STOPPED):
            self.ended.append(output.request_id)

    def _mark_lossy(self) -> None:
        engine = self.engine
        if is_lossy(engine.config):
            self.lossy.update(engine.requests)
        manager = engine.stack.manager
        for request_id, blocks in manager.requests.items():
            if blocks.lineage != manager.keys.format_label:  # hit or holds re-encoded pages
                self.lossy.add(request_id)

    def _random_tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(250) for _ in range(count)]


def state_of(engine: Engine, request: Request) -> str:
    """One of ABORT_STATES."""
    if request.status is RequestStatus.RUNNING:
        return "prefill" if request.is_prefill else "running"
    if request.status is RequestStatus.PREEMPTED:
        return "swapped" if engine.fetcher.is_swapped(request) else "preempted"
    return request.status.value
