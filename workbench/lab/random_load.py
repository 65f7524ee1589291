"""A random workload: everything a user can do to an engine, in any order, with small sizes."""

import random
from collections import Counter
from typing import Any

import numpy as np

from workbench.cache_control import CacheBreakpoint
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.errors import CapacityError, RequestError, SettingError, TierError
from workbench.request import Request, RequestOutput, RequestSpec, RequestStatus, SamplingParams
from workbench.settings.cache import EVICTION_ORDERS, GROUPINGS, PREFIX_INDEXES
from workbench.settings.retention import (
    BUDGET_SPLITS,
    GQA_REDUCTIONS,
    MERGES,
    RETENTION_POLICIES,
    SPARSE_READS,
)
from workbench.settings.tiers import ADMISSIONS, INCLUSIONS, PREFETCHES, WRITES
from workbench.spatial.hierarchy.faults import FAULTS, inject

ABORT_STATES = ("waiting", "loading", "prefill", "running", "preempted", "swapped")

START: dict[str, Any] = {
    "cache.hbm_budget_mib": 0.125, "cache.block_size": 4, "cache.k_format": "fp32",
    "cache.v_format": "fp32", "scheduling.chunk_tokens": 16, "scheduling.token_budget": 32,
    "scheduling.admit_whole_prompt": False, "tiers.dram_mib": 0.05, "tiers.disk_mib": 1.0,
    "scheduling.preemption": "swap",
    "tiers.gate": False, "retention.sink_tokens": 4, "retention.window_tokens": 8,
    "retention.budget_tokens": 24,
}  # fmt: skip

_EXACT = ("fp32", "fp32")
PURE: dict[str, Any] = {
    "cache.layer_plan": "",
    "cache.k_format": "fp32", "cache.v_format": "fp32", "retention.policy": "none",
    "cache.reuse": "exact", "retention.sparse": "off",
}  # fmt: skip
PHASE_STEPS = 150  # exact and lossy settings take turns, so that tokens can be compared in between
CHANGES: dict[str, list[dict[str, Any]]] = {
    "hot": [
        {path: value}
        for path, values in {
            "scheduling.order": ("fcfs", "priority", "longest-prefix-first"),
            "scheduling.preemption": ("swap", "swap", "recompute"),
            "scheduling.token_budget": (8, 32, 64),
            "scheduling.chunk_tokens": (4, 16, 33),
            "scheduling.max_num_seqs": (4, 16),
            "scheduling.watermark": (0.0, 0.05),
            "scheduling.admit_whole_prompt": (True, False, False),
            "cache.prefix_caching": (True, True, True, True, False),
            "cache.reuse": ("recoded", "exact"),
            "cache.index": PREFIX_INDEXES,
            "cache.partial_hits": (True, False),
            "cache.prompt_caching": ("automatic", "automatic", "explicit"),
            "cache.eviction": EVICTION_ORDERS,
            "tiers.dram_mib": (0.0, 0.02, 0.03, 0.05, 0.1),
            "tiers.disk_mib": (0.0, 0.5, 1.0),
            "tiers.gate": (False, False, True),
            "tiers.write": WRITES,
            "tiers.inclusive": INCLUSIONS,
            "tiers.admission": ADMISSIONS,
            "tiers.watermark": (0.8, 1.0),
            "tiers.prefetch": PREFETCHES,
            "retention.policy": ("none", *RETENTION_POLICIES),
            "retention.level": ("page", "token"),
            "retention.when": ("both", "both", "prefill", "decode"),
            "retention.split": BUDGET_SPLITS,
            "retention.merge": MERGES,
            "retention.gqa_reduce": GQA_REDUCTIONS,
            "retention.sparse": SPARSE_READS,
            "retention.sparse_pages": (1, 4),
            "retention.sparse_share": (0.0, 0.3),
            "retention.sparse_outliers": (0, 2),
            "retention.sparse_dense_layers": (0, 1),
            "retention.budget_tokens": (16, 24, 40),
        }.items()
        for value in values
    ],
    "recode": [
        {"cache.k_format": k_format, "cache.v_format": v_format}
        for k_format, v_format in (
            _EXACT, _EXACT, _EXACT, ("bf16", "bf16"), ("int8", "int8"), ("int8", "int4"),
            ("fp8_e4m3", "bf16"), ("fp32", "fp8_e4m3"), ("int4", "int4"), ("kivi4", "kivi4"),
            ("kivi2", "int4"), ("turbo4", "turbo4"), ("int4_rotated", "nvfp4"),
            ("fp8_e4m3_token", "fp8_e5m2"), ("fp8_e4m3_head", "kivi3"),
            ("int8", "kvquant3"), ("bf16", "lowrank"),
        )
    ] + [{"cache.layer_plan": plan} for plan in ("", "", "0=bf16", "1=kivi4; 2=int8/int4")],
    "rebuild": [{"cache.k_format": "kvquant4", "cache.v_format": "lowrank_int4"}] + [
        {path: value}
        for path, values in {
            "cache.hbm_budget_mib": (0.1, 0.125, 0.2),
            "cache.block_size": (4, 4, 8),
            "cache.grouping": GROUPINGS,
            "cache.allocation": ("paged", "paged", "paged", "paged", "contiguous"),
            "cache.mode": ("on", "on", "on", "on", "off"),
            "retention.positions": ("original", "compact"),
            "model.max_model_len": (256, 512),
        }.items()
        for value in values
    ],
}  # fmt: skip


class RandomLoad:
    """Drives one engine; `turn` does a few random things and steps once.

    `counts` holds what happened: applies by class, aborts by state, faults injected, refusals.
    The same seed gives the same decisions, though disk transfers end when the disk is ready.
    """

    def __init__(self, engine: Engine, seed: int, *, max_requests: int = 12) -> None:
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
            for each in CHANGES[kind]
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


def start_config() -> EngineConfig:
    """Small pool, small tiers, fp32: pressure from the first requests on."""
    return replace_settings(EngineConfig(), START)


def is_lossy(config: EngineConfig) -> bool:
    """Whether tokens may differ from the naive loop's under this config."""
    exact = (config.cache.k_format, config.cache.v_format) == _EXACT
    retention = config.retention
    leaves_out = retention.policy != "none" or retention.sparse != "off"
    return not exact or bool(config.cache.layer_plan) or leaves_out


def state_of(engine: Engine, request: Request) -> str:
    """One of ABORT_STATES."""
    if request.status is RequestStatus.RUNNING:
        return "prefill" if request.is_prefill else "running"
    if request.status is RequestStatus.PREEMPTED:
        return "swapped" if engine.fetcher.is_swapped(request) else "preempted"
    return request.status.value
