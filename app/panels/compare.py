"""Figures before and after the last change, with their samples; undecided where they overlap."""

import math
from dataclasses import dataclass

from workbench.snapshot import Number

SHOWN = ("hit_rate", "ttft_p50", "itl_p50", "tokens_per_s", "num_preemptions", "num_evictions")
COUNTS = ("num_preemptions", "num_evictions")


@dataclass(frozen=True)
class Comparison:
    """One figure on both sides of a change."""

    name: str
    before: Number
    after: Number
    undecided: bool


def compare(before: dict[str, Number], after: dict[str, Number]) -> list[Comparison]:
    """The figures known on both sides, in display order."""
    return [
        Comparison(name, before[name], after[name], overlap(name, before[name], after[name]))
        for name in SHOWN
        if name in before and name in after
    ]


def overlap(name: str, before: Number, after: Number) -> bool:
    """True if the two figures cannot be told apart.

    A share has its 95 % binomial range; a latency or rate of n samples counts as known to one part
    in sqrt(n), and not at all without samples. Counters are exact.
    """
    if before.value is None or after.value is None:
        return True
    if name in COUNTS:
        return False
    low_a, high_a = _range(before)
    low_b, high_b = _range(after)
    return low_a <= high_b and low_b <= high_a


def number_text(number: Number) -> str:
    """`84 ms (p50, 30 s, n 41)` or the reason why there is none."""
    if number.value is None:
        return number.why or "n/a"
    share = number.unit in ("share", "ratio", "fraction")
    value = 100 * number.value if share else number.value
    unit = "%" if share else number.unit
    digits = 0 if abs(value) >= 100 or value == int(value) else 1
    parts = [number.percentile] if number.percentile else []
    parts += [f"{number.window_s:g} s"] if number.window_s else []
    parts += [f"n {number.samples}"] if number.samples else []
    return f"{value:.{digits}f} {unit}".strip() + (f" ({', '.join(parts)})" if parts else "")


def _range(number: Number) -> tuple[float, float]:
    value = float(number.value or 0.0)
    if not number.samples:
        return -math.inf, math.inf
    if number.unit in ("share", "ratio", "fraction"):
        half = 1.96 * math.sqrt(max(value * (1 - value), 0.0) / number.samples)
    else:
        half = abs(value) / math.sqrt(number.samples)
    return value - half, value + half
