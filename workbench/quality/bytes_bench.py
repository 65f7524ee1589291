"""Whether formats and retention policies take the bytes they claim, in lines of the arena.

A format claims what its pages sum to. What a longer text adds is counted, so that pages that only
pass through (open ones, whose tokens wait in full precision) drop out. A policy claims its budget:
of a text of LONG tokens so many times less than with everything kept.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from workbench.engine.engine import Engine
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel
from workbench.quality.byte_report import byte_report, held_bytes, prepare
from workbench.quality.engines import Changes, lab_engine, run_window, schedule
from workbench.quality.plan import QualityPlan
from workbench.quality.results import ByteReport
from workbench.quality.settings_file import format_changes
from workbench.quality.texts import Window
from workbench.request import Request, RequestSpec, SamplingParams
from workbench.settings.cache import GROUPINGS
from workbench.settings.retention import RETENTION_POLICIES

SHORT, LONG = 128, 256  # tokens; whole pages of every size
BUDGET, SINKS, NEWEST = 96, 16, 32  # tokens that a policy keeps; whole pages, which none rounds
LEVELS = ("page", "token")


@dataclass(frozen=True)
class Claim:
    """Bytes of bf16 with everything kept over a setting's: as it says, and as the arena has it."""

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


def retention_changes(*, quick: bool) -> Iterator[Changes]:
    """Every policy with every grouping at both levels; `quick`: each of the three at least once."""
    policies = [name for name in RETENTION_POLICIES if name != "none"]
    places = list(itertools.product(GROUPINGS, LEVELS))
    every = itertools.product(policies, places)
    for policy, (grouping, level) in zip(policies, places, strict=True) if quick else every:
        yield {
            "retention.policy": policy, "retention.level": level, "cache.grouping": grouping,
            "retention.budget_tokens": BUDGET, "retention.sink_tokens": SINKS,
            "retention.window_tokens": NEWEST,
        }  # fmt: skip


def measure_budgets(model: LoadedModel, settings: Iterable[Changes]) -> list[Claim]:
    """The claim of each retention setting after a prompt of LONG tokens."""
    whole = _held_lines(model, {})
    return [
        Claim(
            " ".join(str(changes[f"retention.{name}"]) for name in ("policy", "level"))
            + f" {changes['cache.grouping']}",
            LONG / BUDGET,
            whole / _held_lines(model, changes),
        )
        for changes in settings
    ]


def _held_lines(model: LoadedModel, changes: Changes) -> int:
    """Bytes of the arena that lie in blocks of the pool that are held, and were written."""
    spec = RequestSpec(
        token_ids=_tokens(LONG), sampling=SamplingParams(max_tokens=8, ignore_eos=True)
    )
    with lab_engine(model, changes, LONG + 8) as engine:
        prepare(engine)
        request = engine.requests[engine.add_request(spec)]
        while request.num_computed_tokens < LONG:
            engine.step()
        return held_bytes(engine)


def _tokens(count: int) -> list[int]:
    return (np.arange(count) * 37 % 200).tolist()


def claim_figure(formats: list[Claim], budgets: list[Claim]) -> Figure:
    """`bytes_claim_error_max` over all formats and retention settings."""
    worst = max([*formats, *budgets], key=lambda claim: claim.error)
    each = ", ".join(f"{claim.name} {claim.real:.2f}" for claim in formats)
    least, most = (pick(claim.real for claim in budgets) for pick in (min, max))
    return Figure(
        name="bytes_claim_error_max",
        value=worst.error,
        note=f"largest with {worst.name}; bf16's bytes over each of {len(formats)} formats', from "
        f"lines written: {each}; {len(budgets)} retention settings (policy, level, grouping) that "
        f"keep {BUDGET} of {LONG} tokens: {least:.3f} to {most:.3f}",
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
