"""`workbench bench quality`: our codecs beside float64 encoders of the same schemes, by their KL.

Weights, full cache and the encoders' pages are fp32, so that nothing but the scheme differs. Each
window runs in the full cache, in our format and in the float64 twin, on the same steps.

Where every code and scale is equal (int8, fp8), so are the two runs, bit for bit. One scale in some
thousands that fp32 arithmetic rounds the other way is enough for later codes to part: the errors
are then alike in size, not equal. Their ratio therefore has an interval, a bootstrap over windows.
"""

from collections.abc import Callable, Sequence

import numpy as np

from workbench.clock import RealClock
from workbench.config import all_settings
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel, load_model
from workbench.model.random_launch import random_model
from workbench.quality import run
from workbench.quality.bytes_bench import (
    claim_figure,
    measure_budgets,
    measure_claims,
    retention_changes,
)
from workbench.quality.engines import full_changes, lab_engine
from workbench.quality.metrics import TokenScores
from workbench.quality.numpy_schemes import SCHEMES
from workbench.quality.plan import LIVE_PLAN, QualityPlan
from workbench.quality.results import Setting
from workbench.quality.run import Contender, compare
from workbench.quality.settings_file import K_FORMAT, format_changes
from workbench.quality.texts import text_windows
from workbench.quality.twins import twin_engine

Tell = Callable[[str], None]

PLAN = QualityPlan(context=1024, scored=1024, num_windows=4, weight_format="fp32")
QUICK_PLAN = QualityPlan(context=256, scored=64, num_windows=1, weight_format="fp32")
NUM_CONTEXT_WINDOWS = 1
# K and V formats of each scheme, and the KL once measured for it with the newest 128 tokens exact
FORMATS = {
    "int8": ("int8", "int8", 0.0001),
    "fp8_e4m3": ("fp8_e4m3", "fp8_e4m3", 0.002),
    "int4": ("int4", "int4", 0.019),
    "int4_rotated": ("int4_rotated", "int4_rotated", 0.010),
    "kivi4": ("kivi4", "kivi4", 0.006),
    "kivi2": ("kivi2", "kivi2", 0.19),
    "k4v2": ("kivi4", "kivi2", 0.03),
}
NUM_SAMPLES = 2000


def measure(progress: Tell, *, quick: bool) -> list[Figure]:
    """All figures; `quick` runs a small random model for a look at whether it works."""
    plan = QUICK_PLAN if quick else PLAN
    model = random_model(2) if quick else load_model(weight_format="fp32")
    built = [name for name in FORMATS if _is_built(name)]
    pairs = _compare_pairs(model, built, plan, progress)
    context = _context_only(model, built, plan, progress)
    figures = [Figure(name="scored_tokens", value=_num_scored(pairs), note=_describe(plan))]
    ratios: list[float] = []
    for name in FORMATS:
        if name not in built:
            figures += [
                Figure(name=f"{key}_{name}", value=None, note="n/a: not built yet")
                for key in ("kl", "kl_vs_float64")
            ]
            continue
        ours, twin = pairs[name]
        figures += _figures(name, ours, twin, context[name])
        ratios.append(_mean_kl(ours) / _mean_kl(twin))
    note = f"over {len(ratios)} schemes: {', '.join(built)}"
    figures.append(Figure(name="kl_vs_float64_max", value=max(ratios), note=note))
    progress("bytes of formats and retention policies")
    claims = measure_claims(model, all_settings()[K_FORMAT].metadata["choices"])
    budgets = measure_budgets(model, retention_changes(quick=quick))
    return [*figures, claim_figure(claims, budgets), _live_figure(model, quick=quick)]


def _is_built(name: str) -> bool:
    choices = all_settings()[K_FORMAT].metadata["choices"]
    return set(FORMATS[name][:2]) <= set(choices)


def _compare_pairs(
    model: LoadedModel, names: Sequence[str], plan: QualityPlan, progress: Tell
) -> dict[str, tuple[list[TokenScores], list[TokenScores]]]:
    """Scores of (ours, float64) on every window, by scheme."""
    ours = {name: _ours(model, name) for name in names}
    twins = {name: _twin(model, name) for name in names}
    paired = [contender for name in names for contender in (ours[name], twins[name])]
    _run_all(model, paired, plan, plan.num_windows, progress)
    return {name: (ours[name].windows, twins[name].windows) for name in names}


def _context_only(
    model: LoadedModel, names: Sequence[str], plan: QualityPlan, progress: Tell
) -> dict[str, float]:
    """KL of the float64 schemes when only the context is coded: what the newest tokens add."""
    twins = {name: _twin(model, name, plan.context) for name in names}
    _run_all(model, list(twins.values()), plan, NUM_CONTEXT_WINDOWS, progress)
    return {
        name: float(np.mean([window.kl[1:].mean() for window in twin.windows]))
        for name, twin in twins.items()
    }


def _run_all(
    model: LoadedModel,
    contenders: list[Contender],
    plan: QualityPlan,
    num_windows: int,
    progress: Tell,
) -> None:
    windows = text_windows(model.tokenizer, plan)[:num_windows]
    full = Contender("full cache", lambda size: lab_engine(model, full_changes(model), size))
    compare(
        full,
        contenders,
        windows,
        [],
        plan,
        lambda share, text: progress(f"{100 * share:3.0f} %  {text}"),
        lambda: False,
    )


def _ours(model: LoadedModel, name: str) -> Contender:
    k_format, v_format, _ = FORMATS[name]
    changes = format_changes(k_format, v_format)
    return Contender(name, lambda size: lab_engine(model, changes, size))


def _twin(model: LoadedModel, name: str, limit: int | None = None) -> Contender:
    scheme = SCHEMES[name]
    title = f"{name} in float64" + (" (context only)" if limit else "")
    return Contender(title, lambda size: twin_engine(model, scheme, size, limit))


def _figures(
    name: str, ours: list[TokenScores], twin: list[TokenScores], context: float
) -> list[Figure]:
    kl, exact, reference = _mean_kl(ours), _mean_kl(twin), FORMATS[name][2]
    bounds = ratio_interval(ours, twin)
    spread = f"95 %: {bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "one window: no interval"
    return [
        Figure(
            name=f"kl_{name}",
            value=kl,
            unit="nats/token",
            note=f"reference {reference:g} with the newest 128 tokens exact; float64 with all "
            f"tokens after the context exact: {context:.3g}",
        ),
        Figure(
            name=f"kl_vs_float64_{name}",
            value=kl / exact,
            note=f"float64: {exact:.5g}; {spread}",
        ),
    ]


def _mean_kl(windows: Sequence[TokenScores]) -> float:
    return float(np.concatenate([window.kl for window in windows]).mean())


def ratio_interval(
    ours: Sequence[TokenScores], twin: Sequence[TokenScores], seed: int = 0
) -> tuple[float, float] | None:
    """95 % bounds of mean KL over mean KL, drawing the same windows for both; None for one window.

    Whole windows, because all tokens of one read the same errors in its context.
    """
    sums = [np.array([window.kl.sum() for window in side]) for side in (ours, twin)]
    count = len(ours)
    if count < 2:
        return None
    drawn = np.random.default_rng(seed).integers(0, count, (NUM_SAMPLES, count))
    low, high = np.percentile(sums[0][drawn].sum(1) / sums[1][drawn].sum(1), (2.5, 97.5))
    return float(low), float(high)


def _num_scored(pairs: dict[str, tuple[list[TokenScores], list[TokenScores]]]) -> int:
    ours, _ = next(iter(pairs.values()))
    return sum(len(window) for window in ours)


def _describe(plan: QualityPlan) -> str:
    return (
        f"context {plan.context}, {plan.num_windows} windows, steps of {plan.context_chunk} and "
        f"{plan.scored_chunk}, fp32 weights and full cache, seed {plan.seed}"
    )


def _live_figure(model: LoadedModel, *, quick: bool) -> Figure:
    """Seconds until a setting's KL is known, with the weights that an engine already has."""
    if not quick:
        model = load_model(weight_format=LIVE_PLAN.weight_format)
    clock = RealClock()
    started_s = clock.now_s()
    changes = format_changes("int8", "int8")
    (report,) = run.measure(model, [Setting(name="int8", changes=changes)], LIVE_PLAN)
    return Figure(
        name="live_quality_s",
        value=clock.now_s() - started_s,
        unit="s",
        note=f"int8, {report.num_scored_tokens} scored tokens: KL {report.kl_mean:.2g}, top-1 "
        f"{100 * report.top1:.1f} %",
    )
