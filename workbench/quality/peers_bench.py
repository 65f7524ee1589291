"""`workbench bench quality-peers`: quantized caches of transformers and kvpress beside ours.

Same weights (fp32), same token ids, same context; each side against a full cache of its own. Peers
run in an environment of their own (tests/peers). They read the context exactly and then code it,
so ours does too (`exact_prefill`), and only tokens after the context are scored.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workbench.lab.bench_runs import refused
from workbench.lab.figures import Figure
from workbench.lab.peers_bench import PeersPlan, peer_model
from workbench.model.load import LoadedModel, load_model
from workbench.quality.engines import full_changes, lab_engine, split_changes
from workbench.quality.metrics import join
from workbench.quality.peers_kept import measure_kept
from workbench.quality.peers_presses import PRESSES, compressed_only, measure_presses
from workbench.quality.peers_process import (
    ENVIRONMENT,
    ROOT,
    CacheRun,
    CachesAnswer,
    PressesAnswer,
    ask_peer,
    missing_environment,
)
from workbench.quality.plan import QualityPlan
from workbench.quality.run import Contender, compare
from workbench.quality.settings_file import format_changes
from workbench.quality.texts import Window, text_windows

Tell = Callable[[str], None]
NAMES = ("kl_ratio_quanto", "kl_ratio_hqq", "kept_sets_equal", "kl_press_difference_max",
         "top1_at_20pct_kept")  # fmt: skip
# quanto's groups along channels need tokens * KV heads to be a multiple of 64 whenever it recodes
STEP = 64
BLOCK, NUM_SAMPLES = 32, 2000


def _cache(backend: str, nbits: int, axis_key: int, axis_value: int) -> dict[str, Any]:
    return dict(backend=backend, nbits=nbits, axis_key=axis_key, axis_value=axis_value)


CACHES = {
    "quanto4": _cache("quanto", 4, 0, 0),
    "quanto4_channel": _cache("quanto", 4, -1, 0),
    "hqq4": _cache("hqq", 4, 1, 1),
    "quanto2": _cache("quanto", 2, 0, 0),
    "quanto2_channel": _cache("quanto", 2, -1, 0),
    "hqq2": _cache("hqq", 2, 1, 1),
}
RATIOS = {  # figure: the caches of which the best counts
    "kl_ratio_quanto": ("quanto4", "quanto4_channel"),
    "kl_ratio_hqq": ("hqq4",),
    "kl_ratio_quanto_2bit": ("quanto2", "quanto2_channel"),
    "kl_ratio_hqq_2bit": ("hqq2",),
}
OURS = {  # K and V formats
    "kivi4": ("kivi4", "kivi4"),
    "kivi4_turbo4": ("kivi4", "turbo4"),
    "int4_rotated": ("int4_rotated", "int4_rotated"),
    "kivi2": ("kivi2", "kivi2"),
}


@dataclass(frozen=True)
class PeersQualityPlan:
    """Sizes of the three parts: quantized caches, presses, and a fifth of the tokens kept."""

    caches: QualityPlan
    presses: QualityPlan
    kept: QualityPlan
    ratios: tuple[float, ...] = (0.25, 0.5, 0.75)  # evicted
    root: Path = ROOT
    threads: int = field(default_factory=torch.get_num_threads)


def _plan(context: int, scored: int, num_windows: int) -> QualityPlan:
    return QualityPlan(
        context=context, scored=scored, num_windows=num_windows, scored_chunk=STEP,
        weight_format="fp32", exact_prefill=True,
    )  # fmt: skip


PLAN = (_plan(1024, 256, 3), _plan(512, 128, 2), _plan(1024, 128, 4))
QUICK = (_plan(192, 128, 1), _plan(192, 64, 1), _plan(192, 64, 2))


def measure(
    progress: Tell, *, quick: bool = False, plan: PeersQualityPlan | None = None
) -> list[Figure]:
    """All figures; `refused` with one sentence where the peers' environment is missing."""
    if plan is None:
        parts = QUICK if quick else PLAN
        plan = PeersQualityPlan(*parts, ratios=(0.5,)) if quick else PeersQualityPlan(*parts)
    missing = missing_environment(plan.root)
    if missing:
        return refused(NAMES, missing)
    folder = peer_model(PeersPlan(root=plan.root), progress, ENVIRONMENT)
    model = load_model(weight_format="fp32")
    with tempfile.TemporaryDirectory(prefix="kvw-peers-") as logs:
        return [
            *_measure_caches(model, folder, plan, Path(logs), progress),
            *_measure_presses(model, folder, plan, Path(logs), progress),
            *measure_kept(model, plan.kept, progress),
        ]


def _request(folder: Path, plan: PeersQualityPlan, part: QualityPlan, windows: list[Window]) -> Any:
    return {
        "model": str(folder),
        "threads": plan.threads,
        "context": part.context,
        "step": part.scored_chunk,
        "windows": [list(window.token_ids) for window in windows],
    }


def _measure_presses(
    model: LoadedModel, folder: Path, plan: PeersQualityPlan, logs: Path, tell: Tell
) -> list[Figure]:
    part = plan.presses
    windows = compressed_only(text_windows(model.tokenizer, part))
    out = logs / "presses.npz"
    request = {
        **_request(folder, plan, part, windows),
        "presses": list(PRESSES), "ratios": list(plan.ratios), "out": str(out),
    }  # fmt: skip
    theirs = ask_peer(
        "quality_presses.py", request, PressesAnswer, plan.root, logs / "presses.log", tell
    )
    with np.load(out) as arrays:
        return measure_presses(model, part, windows, theirs, arrays, tell)


def _measure_caches(
    model: LoadedModel, folder: Path, plan: PeersQualityPlan, logs: Path, tell: Tell
) -> list[Figure]:
    part = plan.caches
    windows = compressed_only(text_windows(model.tokenizer, part))
    request = {
        **_request(folder, plan, part, windows),
        "caches": [{"name": name, **options} for name, options in CACHES.items()],
    }
    theirs = ask_peer(
        "quality_caches.py", request, CachesAnswer, plan.root, logs / "caches.log", tell
    )
    ours = _run_ours(model, part, windows, tell)
    return cache_figures(theirs, ours, part)


def _run_ours(
    model: LoadedModel, plan: QualityPlan, windows: list[Window], tell: Tell
) -> list[Contender]:
    contenders = []
    for name, formats in OURS.items():
        first, then = split_changes(model, format_changes(*formats), exact_prefill=True)

        def build(size: int, first: Any = first) -> Any:
            return lab_engine(model, first, size)

        contenders.append(Contender(name, build, after_context=then))
    full = Contender("full cache", lambda size: lab_engine(model, full_changes(model), size))

    def progress(share: float, text: str) -> None:
        tell(f"ours, {100 * share:.0f} %: {text}")

    compare(full, contenders, windows, [], plan, progress, lambda: False)
    return contenders


def cache_figures(
    theirs: CachesAnswer, ours: Sequence[Contender], plan: QualityPlan
) -> list[Figure]:
    """KL and bits of every cache, and of the best of ours with at most a peer's bits the ratio."""
    count = sum(map(len, ours[0].windows))
    note = (
        f"context {plan.context}, {len(ours[0].windows)} windows, steps of {plan.scored_chunk}, "
        f"fp32 weights, exact prefill; transformers {theirs.versions.get('transformers', '')}"
    )
    figures = [Figure(name="scored_tokens_peers", value=count, note=note)]
    for name, run in theirs.caches.items():
        text = (
            f"{run.bits:.3g} bits a number after the context, {run.bits_later:.3g} with its "
            f"full-precision tokens at the end; top-1 {100 * run.top1:.1f} %"
        )
        figures.append(Figure(name=f"kl_peer_{name}", value=run.mean_kl, unit="nats/token",
                              note=text))  # fmt: skip
    for item in ours:
        scores = join(item.windows)
        same = float((scores.best == scores.best_full).mean())
        text = f"{_bits(item):.3g} bits a number; top-1 {100 * same:.1f} %"
        figures.append(Figure(name=f"kl_ours_{item.name}", value=float(scores.kl.mean()),
                              unit="nats/token", note=text))  # fmt: skip
    return figures + [
        _ratio(figure, {name: theirs.caches[name] for name in names if name in theirs.caches}, ours)
        for figure, names in RATIOS.items()
    ]


def _ratio(figure: str, theirs: dict[str, CacheRun], ours: Sequence[Contender]) -> Figure:
    """Ours over the best of theirs, among ours with at most its bits."""
    if not theirs:
        return Figure(name=figure, value=None, note="n/a: the peer did not run it")
    name, best = min(theirs.items(), key=lambda item: item[1].mean_kl)
    fitting = [item for item in ours if _bits(item) <= best.bits * (1 + 1e-9)]
    if not fitting:
        note = f"n/a: none of ours takes at most the {best.bits:.3g} bits of {name}"
        return Figure(name=figure, value=None, note=note)
    chosen = min(fitting, key=lambda item: join(item.windows).kl.mean())
    mine = [window.kl for window in chosen.windows]
    low, high = ratio_interval(mine, [np.array(kl) for kl in best.kl])
    note = (
        f"our {chosen.name} at {_bits(chosen):.3g} bits a number, {name} at {best.bits:.3g}; 95 %: "
        f"{low:.2f} to {high:.2f}"
    )
    value = float(np.concatenate(mine).mean()) / best.mean_kl
    return Figure(name=figure, value=value, note=note)


def _bits(item: Contender) -> float:
    assert item.bytes is not None
    return item.bytes.bits_per_element


def ratio_interval(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> tuple[float, float]:
    """95 % bounds of sum over sum of KL by window, drawing the same runs of 32 tokens for both."""
    sums = [
        np.concatenate([np.add.reduceat(kl, range(0, len(kl), BLOCK)) for kl in side])
        for side in (ours, theirs)
    ]
    count = len(sums[0])
    drawn = np.random.default_rng(0).integers(0, count, (NUM_SAMPLES, count))
    low, high = np.percentile(sums[0][drawn].sum(1) / sums[1][drawn].sum(1), (2.5, 97.5))
    return float(low), float(high)
