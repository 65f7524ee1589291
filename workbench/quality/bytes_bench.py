"""Whether a format takes the bytes it claims: arena lines really written, against its pages' sum.

What a longer text adds is counted, so that pages that only pass through (open ones, whose tokens
wait in full precision) drop out.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from workbench.engine.engine import Engine
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel
from workbench.quality.byte_report import byte_report, prepare
from workbench.quality.engines import lab_engine, run_window, schedule
from workbench.quality.plan import QualityPlan
from workbench.quality.results import ByteReport
from workbench.quality.settings_file import format_changes
from workbench.quality.texts import Window
from workbench.request import Request

SHORT, LONG = 128, 256  # tokens; whole pages of every size


@dataclass(frozen=True)
class Claim:
    """Bytes of bf16 over bytes of a format: as its pages say, and as the arena was written."""

    name: str
    claimed: float
    real: float

    @property
    def error(self) -> float:
        """Relative difference."""
        return abs(self.real / self.claimed - 1)


def measure_claims(model: LoadedModel, names: Iterable[str]) -> list[Claim]:
    """The claim of each format, K and V alike."""
    bf16 = _growth(model, "bf16")
    claims = []
    for name in names:
        allocated, touched = _growth(model, name)
        claims.append(Claim(name, bf16[0] / allocated, bf16[1] / touched))
    return claims


def claim_figure(claims: list[Claim]) -> Figure:
    """`bytes_claim_error_max` over all formats."""
    worst = max(claims, key=lambda claim: claim.error)
    each = ", ".join(f"{claim.name} {claim.real:.2f}" for claim in claims)
    return Figure(
        name="bytes_claim_error_max",
        value=worst.error,
        note=f"bf16's bytes over each format's, from lines written: {each}",
    )


def _growth(model: LoadedModel, name: str) -> tuple[int, int]:
    """(allocated, touched) bytes that the tokens from SHORT to LONG add."""
    short, long = (_count(model, name, size) for size in (SHORT, LONG))
    return long.allocated - short.allocated, long.touched - short.touched


def _count(model: LoadedModel, name: str, size: int) -> ByteReport:
    reports: list[ByteReport] = []
    window = Window(tuple((np.arange(size) % 200).tolist()), size // 2, size - 2)

    def look(engine: Engine, request: Request, positions: np.ndarray, logits: Tensor) -> None:
        reports.append(byte_report(engine, request))

    with lab_engine(model, format_changes(name, name), size) as engine:
        prepare(engine)
        steps = schedule(window, QualityPlan(context_chunk=64, scored_chunk=64), None)
        run_window(engine, window, steps, look)
    return reports[-1]
