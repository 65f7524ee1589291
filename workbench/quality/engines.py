"""The real engine, in process, reading one forced window at a time.

    window   | context, steps of 128 .......... | scored, steps of 32 .... |
    logits                                     ^ first scored position (predicts the next token)

K and V go into pages first and attention reads the pages, so that every query, also of a chunk,
reads what the setting left of the tokens before it and of its own chunk.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from workbench.config import EngineConfig, all_settings, get_setting, replace_settings
from workbench.engine.compressed_reads import full_format
from workbench.engine.engine import Engine
from workbench.errors import RequestError, SettingError
from workbench.model.load import LoadedModel
from workbench.quality.job_protocol import refuse_tier_setting
from workbench.quality.plan import QualityPlan
from workbench.quality.texts import Window
from workbench.request import Request, RequestSpec, SamplingParams
from workbench.settings.formats import PRE_ROPE_FORMATS


class StoppedError(Exception):
    """A run of a window was told to stop before its end; what it scored is left out."""


Changes = dict[str, Any]
OnRows = Callable[[Engine, Request, np.ndarray, Tensor], None]

# What the lab itself decides, the same for the full cache and for every setting.
OWN = {
    "cache.prefix_caching": False,
    "scheduling.max_num_seqs": 1,
    "scheduling.token_budget": 16384,
    "scheduling.chunk_tokens": 128,
}
SPARE_PAGES = 4
FORMAT_PATHS = ("cache.k_format", "cache.v_format")


def check_changes(changes: Changes) -> None:
    """Refuse a setting by name before anything runs: unknown, out of range, or not the lab's."""
    replace_settings(EngineConfig(), changes)
    for path in changes:
        refuse_tier_setting(path)
        if path in OWN:
            raise SettingError(
                f"{path} is the quality lab's own (the same for every setting): leave it out"
            )
        if all_settings()[path].metadata["change"] == "restart":
            raise SettingError(
                f"{path} changes the weights, and a cache setting is judged on equal weights: "
                "leave it out"
            )


def full_changes(model: LoadedModel) -> Changes:
    """The full-precision cache: pages in the compute dtype, nothing evicted."""
    name = full_format(model.decoder.compute_dtype)
    return {"cache.k_format": name, "cache.v_format": name, "retention.policy": "none"}


def lab_config(model: LoadedModel, changes: Changes, num_tokens: int) -> EngineConfig:
    """A config with room for one window of `num_tokens` tokens in any format."""
    arch = model.arch
    base = replace_settings(EngineConfig(), changes)
    size = base.cache.block_size
    page_tokens = (-(-num_tokens // size) + SPARE_PAGES) * size
    fp32_bytes = page_tokens * arch.num_layers * arch.num_kv_heads * arch.head_dim * 2 * 4
    room: Changes = {
        "cache.hbm_budget_mib": max(1.0, 2 * fp32_bytes / 2**20),
        "model.max_model_len": max(64, num_tokens + 2 * size),
    }
    return replace_settings(EngineConfig(), {**room, **changes, **OWN})


@contextmanager
def lab_engine(model: LoadedModel, changes: Changes, num_tokens: int) -> Iterator[Engine]:
    """A fresh engine for one window, closed at the end; nothing is carried over between windows."""
    engine = Engine(lab_config(model, changes, num_tokens), model)
    engine.retainer.for_display = False  # nobody looks
    try:
        yield engine
    finally:
        engine.close()


def observed_tail(model: LoadedModel, changes: Changes, plan: QualityPlan) -> int | None:
    """Last tokens of the context that a setting's policy wants in a step of their own.

    Builds the engine once, so that what cannot be is refused before anything runs; SettingError for
    a window that the context does not exceed, because such a policy would have nothing to choose.
    """
    with lab_engine(model, {**changes}, 2 * plan.context_chunk) as engine:
        engine.apply({"scheduling.chunk_tokens": plan.context_chunk})
        tail = engine.retainer.tail_tokens()
        window = engine.retainer.policy.tail_queries(engine.config.retention)
    if window >= plan.context:
        raise SettingError(
            f"retention.window_tokens = {window} covers the whole context of {plan.context} "
            "tokens: choose a smaller window, or a longer context"
        )
    return tail


def schedule(window: Window, plan: QualityPlan, tail: int | None) -> list[int]:
    """Tokens of each step, the same for the full cache and the settings compared with it."""
    alone = min(tail or 0, window.context)
    rest = len(window.token_ids) - window.context
    return [
        *_pieces(window.context - alone, plan.context_chunk),
        *_pieces(alone, plan.context_chunk),
        *_pieces(rest, plan.scored_chunk),
    ]


def _pieces(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]


def split_changes(
    model: LoadedModel, changes: Changes, *, exact_prefill: bool
) -> tuple[Changes, Changes]:
    """Changes to start with, and those that follow once the context was read.

    With `exact_prefill` the context is read with the full cache's formats and then recoded. Where
    they store keys before RoPE, so does the full cache: else nothing could be recoded, and the
    context would be computed again. SettingError where that would change positions.
    """
    if not exact_prefill or replace_settings(EngineConfig(), changes).cache.own_basis:
        return changes, {}  # keys wait exactly for a basis of their own
    full = full_changes(model)
    formats = {path: get_setting(replace_settings(EngineConfig(), changes), path)
               for path in FORMAT_PATHS}  # fmt: skip
    start = {**changes, **{path: full[path] for path in FORMAT_PATHS}}
    wanted = replace_settings(EngineConfig(), changes)
    if wanted.cache.key_formats & set(PRE_ROPE_FORMATS):
        if wanted.retention.policy != "none" and wanted.retention.positions != "compact":
            raise SettingError(
                f"cache.k_format = {wanted.cache.k_format} keeps keys before RoPE: exact prefill "
                "with retention needs retention.positions = compact"
            )
        start["retention.positions"] = "compact"  # with nothing evicted ranks are positions
    return start, formats


def run_window(
    engine: Engine,
    window: Window,
    steps: list[int],
    on_rows: OnRows,
    after_context: Changes | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Read a window; `on_rows(engine, request, positions, logits)` once a step with scored rows.

    For the engine the context is the prompt and the rest was generated before (`resume_tokens`), so
    that policies act as they do while decoding. `after_context`: changes made between the two. The
    last position predicts nothing that is known and is left out. `stop` is asked before each step.
    Raises RequestError when the engine cannot hold the window, StoppedError once `stop` says yes.
    """
    last = len(window.token_ids) - 1

    def tap(request: Request, positions: np.ndarray, logits: Tensor) -> None:
        keep = int((positions < last).sum())
        on_rows(engine, request, positions[:keep], logits[:keep])

    engine.tap = tap
    tokens = list(window.token_ids)
    spec = RequestSpec(
        token_ids=tokens[: window.context],
        resume_tokens=tokens[window.context :],
        sampling=SamplingParams(max_tokens=len(tokens) - window.context + 1, ignore_eos=True),
        logits_from=window.score_from,
    )
    request = engine.requests[engine.add_request(spec)]
    for count in steps:
        if stop():
            raise StoppedError("the run was stopped inside a window")
        if after_context and request.num_computed_tokens == window.context:
            engine.apply(after_context)
        if engine.config.scheduling.chunk_tokens != count:
            engine.apply({"scheduling.chunk_tokens": count})
        engine.step()
    engine.tap = None
    if request.error or request.max_computed_tokens < last:
        raise RequestError(request.error or f"request {request.request_id} was not computed whole")
