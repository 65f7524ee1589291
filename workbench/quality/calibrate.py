"""A plan of formats by layer for a budget of bits: measured sensitivity, then the best sum.

Each layer alone is stored in each format while the others stay full; that KL is the layer's price.
Prices are taken to add up, which a last measurement of the whole plan checks. The choice is an
exact knapsack over sixteenths of a bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from kvkernels.layout import PageSpec

from workbench.errors import SettingError
from workbench.layer_plan import Formats, write_plan
from workbench.model.load import LoadedModel
from workbench.quality.engines import Changes, full_changes
from workbench.quality.plan import QualityPlan
from workbench.quality.results import QualityReport, Setting
from workbench.quality.run import Progress, measure
from workbench.quality.settings_file import format_changes
from workbench.settings.formats import KV_FORMATS

UNIT = 16  # steps of the knapsack in one bit
DEFAULT_FORMATS: tuple[Formats, ...] = (("int8", "int8"), ("int4", "int4"), ("int3", "int3"))


@dataclass(frozen=True)
class Calibration:
    """A plan and what was measured for it.

    `prices`: KL of each layer alone in each format, float [L, F]. `chosen`: index into `formats` of
    each layer. `bits`: stored bits a number, mean over layers.
    """

    formats: tuple[Formats, ...]
    prices: np.ndarray
    chosen: np.ndarray
    bits: float
    text: str
    plan: QualityReport
    uniform: list[QualityReport]

    @property
    def predicted_kl(self) -> float:
        """The sum of the chosen prices."""
        return float(self.prices[np.arange(len(self.chosen)), self.chosen].sum())


def calibrate(
    model: LoadedModel,
    budget_bits: float,
    formats: Sequence[Formats] = DEFAULT_FORMATS,
    plan: QualityPlan | None = None,
    progress: Progress = lambda share, text: None,
) -> Calibration:
    """Measure, choose, and measure the choice beside each format in all layers.

    Raises SettingError for an unknown format or a budget below the smallest one.
    """
    formats, plan = tuple(formats), plan or QualityPlan(context=512, scored=256, num_windows=2)
    bits = np.array([format_bits(model, each) for each in formats])
    layers = model.arch.num_layers
    if not formats or budget_bits < bits.min():
        raise SettingError(
            f"a budget of {budget_bits:g} bits is below the smallest of these formats "
            f"({bits.min(initial=np.inf):.2f}): raise it or name a smaller one"
        )
    base = _base(model, formats)
    alone = [
        Setting(name=f"layer {layer} {label(each)}",
                changes={**base, "cache.layer_plan": write_plan({layer: each})})
        for layer in range(layers)
        for each in formats
    ]  # fmt: skip
    total = len(alone) + 1 + len(formats)
    reports = measure(model, alone, plan, _part(progress, 0, len(alone) / total))
    prices = np.array([report.kl_mean for report in reports]).reshape(layers, len(formats))
    chosen = choose(prices, bits, budget_bits)
    text = write_plan({layer: formats[at] for layer, at in enumerate(chosen)})
    whole = [Setting(name="plan", changes={**base, "cache.layer_plan": text})] + [
        Setting(name=label(each), changes={**base, "cache.layer_plan": f"0-{layers - 1}="
                                           f"{each[0]}/{each[1]}"})
        for each in formats
    ]  # fmt: skip
    measured = measure(model, whole, plan, _part(progress, len(alone) / total, 1.0))
    return Calibration(
        formats, prices, chosen, float(bits[chosen].mean()), text, measured[0], measured[1:]
    )


def choose(prices: np.ndarray, bits: np.ndarray, budget_bits: float) -> np.ndarray:
    """Format of each layer, int [L], with the least sum of prices within the mean budget.

    prices: float [L, F]; bits: float [F], rounded up to sixteenths.
    """
    layers = len(prices)
    weight = np.ceil(np.round(bits * UNIT, 6)).astype(int)
    room = int(budget_bits * UNIT * layers + 1e-6)
    best = np.full(room + 1, np.inf)
    best[0] = 0.0
    picks = np.zeros((layers, room + 1), int)
    for layer in range(layers):
        options = np.full((len(bits), room + 1), np.inf)
        for at, size in enumerate(weight):
            if size <= room:
                options[at, size:] = best[: room + 1 - size] + prices[layer, at]
        picks[layer], best = options.argmin(0), options.min(0)
    used = int(best.argmin())
    chosen = np.zeros(layers, int)
    for layer in range(layers - 1, -1, -1):
        chosen[layer] = picks[layer, used]
        used -= weight[chosen[layer]]
    return chosen


def label(formats: Formats) -> str:
    """`int8`, or `int8/int4` where K and V differ."""
    return formats[0] if formats[0] == formats[1] else "/".join(formats)


def format_bits(model: LoadedModel, formats: Formats) -> float:
    """Stored bits a number of one layer's pages, metadata and padding included."""
    for name in formats:
        if name not in KV_FORMATS:
            raise SettingError(f"{name!r} is no format: choose one of {', '.join(KV_FORMATS)}")
    arch = model.arch
    try:
        spec = PageSpec(1, arch.num_kv_heads, arch.head_dim, _block_size((formats,)), *formats)
    except ValueError as error:
        raise SettingError(f"{label(formats)}: {error}") from None
    return spec.bits_per_element


def _base(model: LoadedModel, formats: Sequence[Formats]) -> Changes:
    full = full_changes(model)
    return {**full, "cache.grouping": "layer", "cache.block_size": _block_size(formats)}


def _block_size(formats: Sequence[Formats]) -> int:
    sizes = [format_changes(*each).get("cache.block_size", 16) for each in formats]
    return int(max(sizes))


def _part(progress: Progress, low: float, high: float) -> Progress:
    return lambda share, text: progress(low + share * (high - low), text)
