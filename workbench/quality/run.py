"""Measure what settings cost in output quality, window by window beside the full cache."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from workbench.clock import Clock, RealClock
from workbench.engine.compressed_reads import reads_compressed
from workbench.engine.engine import Engine
from workbench.errors import SettingError
from workbench.model.load import LoadedModel
from workbench.quality.byte_report import byte_report, prepare
from workbench.quality.engines import (
    Changes,
    StoppedError,
    check_changes,
    full_changes,
    lab_engine,
    observed_tail,
    run_window,
    schedule,
    split_changes,
)
from workbench.quality.metrics import TokenScores, join, score_rows
from workbench.quality.needle import DEPTHS, needle_windows
from workbench.quality.plan import QualityPlan
from workbench.quality.report import build_report
from workbench.quality.results import ByteReport, NeedleScore, QualityReport, Setting
from workbench.quality.texts import Window, text_windows
from workbench.request import Request


class Doing(str):
    """What runs now, as a sentence for a terminal and in its parts for a page.

    `kind`: window, needle, probe, loading or done; `number` counts from 1; `setting` is its name.
    """

    kind: str
    number: int
    setting: str

    def __new__(cls, kind: str, number: int = 0, setting: str = "") -> "Doing":
        """`window 2: int8`, `probe: int8` or `done`."""
        title = f"{kind} {number}" if number else kind
        made = super().__new__(cls, f"{title}: {setting}" if setting else title)
        made.kind, made.number, made.setting = kind, number, setting
        return made


Progress = Callable[[float, Doing], None]  # share done, what runs now
Build = Callable[[int], AbstractContextManager[Engine]]  # an engine for so many tokens
LogRows = list[tuple[np.ndarray, Tensor]]  # positions [n], log-probabilities fp32 [n, vocab]


@dataclass
class Contender:
    """Something that is compared with the full cache, and what it scored so far."""

    name: str
    build: Build
    tail: int | None = None  # last tokens of the context that are a step of their own
    after_context: Changes = field(default_factory=dict)  # settings changed once it was read
    windows: list[TokenScores] = field(default_factory=list)
    needle: list[TokenScores] = field(default_factory=list)
    bytes: ByteReport | None = None
    seconds: float = 0.0


def measure(
    model: LoadedModel,
    settings: Sequence[Setting],
    plan: QualityPlan,
    progress: Progress = lambda share, text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[QualityReport]:
    """A report for each setting, in order.

    `cancelled` is asked before each step of a window; once it says yes, the windows that all
    settings have done are reported (none: an empty list). Raises SettingError before anything runs
    for a setting that is unknown, out of range or not the lab's to change; RequestError for a
    text that is too short.
    """
    for setting in settings:
        check_changes(setting.changes)
    plan.held_bytes(model.arch.vocab_size)
    contenders = [make_contender(model, item, plan) for item in settings]
    windows = text_windows(model.tokenizer, plan)
    needles = needle_windows(model.tokenizer, plan) if plan.needle else []
    full = Contender("full cache", lambda size: lab_engine(model, full_changes(model), size))
    done = compare(full, contenders, windows, needles, plan, progress, cancelled)
    if not done:
        return []
    return [
        report_of(model, setting, contender, plan, done)
        for setting, contender in zip(settings, contenders, strict=True)
    ]


def report_of(
    model: LoadedModel, setting: Setting, contender: Contender, plan: QualityPlan, num_windows: int
) -> QualityReport:
    """The report over the first `num_windows` windows and all needles that are done."""
    return build_report(
        setting,
        contender.windows[:num_windows],
        plan=plan,
        tokenizer=model.tokenizer,
        full_format=str(full_changes(model)["cache.k_format"]),
        bytes=contender.bytes,
        needle=[
            _needle(depth, scores) for depth, scores in zip(DEPTHS, contender.needle, strict=False)
        ],
        seconds=contender.seconds,
    )


def make_contender(model: LoadedModel, setting: Setting, plan: QualityPlan) -> Contender:
    """What runs a setting: its engines, its observed tail, and what changes after the context."""
    first, then = split_changes(model, setting.changes, exact_prefill=plan.exact_prefill)
    tail = observed_tail(model, setting.changes, plan)
    return Contender(setting.name, lambda size: lab_engine(model, first, size), tail, then)


def compare(
    full: Contender,
    contenders: Sequence[Contender],
    windows: Sequence[Window],
    needles: Sequence[Window],
    plan: QualityPlan,
    progress: Progress,
    cancelled: Callable[[], bool],
) -> int:
    """Run every window in the full cache and then in each contender's; windows that all have done.

    One window's full log-probabilities are held at a time (`QualityPlan.held_bytes`).
    """
    tails = {item.tail for item in contenders}
    total = (len(windows) + len(needles)) * (len(tails) + len(contenders))
    runs = _Runs(plan, RealClock(), progress, cancelled, total)
    for number, window in enumerate(windows):
        for contender, scores in runs.window(full, contenders, window, "window", number + 1):
            contender.windows.append(scores)
        if runs.stopped:
            return number
    for number, window in enumerate(needles):
        for contender, scores in runs.window(full, contenders, window, "needle", number + 1):
            contender.needle.append(scores)
        if runs.stopped:
            return len(windows)
    progress(1.0, Doing("done"))
    return len(windows)


class _Runs:
    """Counts runs for the progress, and stops between steps."""

    def __init__(
        self,
        plan: QualityPlan,
        clock: Clock,
        progress: Progress,
        cancelled: Callable[[], bool],
        total: int,
    ) -> None:
        self.stopped = False
        self._plan = plan
        self._clock = clock
        self._progress = progress
        self._cancelled = cancelled
        self._total = total
        self._num_done = 0

    def window(
        self,
        full: Contender,
        contenders: Sequence[Contender],
        window: Window,
        kind: str,
        number: int,
    ) -> Iterator[tuple[Contender, TokenScores]]:
        """Each contender with its scores, until it is stopped.

        Those that share a schedule follow each other, so that one set of full rows is held.
        """
        tails = sorted(
            {item.tail for item in contenders}, key=lambda tail: (tail is not None, tail)
        )
        for tail in tails:
            steps = schedule(window, self._plan, tail)
            held: LogRows = []
            with self._run(kind, number, full) as goes:
                if goes:
                    held = full_rows(full.build, window, steps, self._cancelled)
            for contender in contenders:
                if contender.tail != tail or self.stopped:
                    continue
                scores = None
                with self._run(kind, number, contender) as goes:
                    if goes:
                        scores = score_window(contender, window, steps, held, self._cancelled)
                if scores is not None:
                    yield contender, scores

    @contextmanager
    def _run(self, kind: str, number: int, contender: Contender) -> Iterator[bool]:
        """Whether to run at all; counts the run and its seconds, and ends one that is stopped."""
        self.stopped = self.stopped or self._cancelled()
        if self.stopped:
            yield False
            return
        doing = Doing(kind, number, contender.name)
        self._progress(min(1.0, self._num_done / self._total), doing)
        started_s = self._clock.now_s()
        try:
            yield True
        except StoppedError:
            self.stopped = True
            return
        contender.seconds += self._clock.now_s() - started_s
        self._num_done += 1


def full_rows(
    build: Build, window: Window, steps: list[int], stop: Callable[[], bool] = lambda: False
) -> LogRows:
    """The full cache's log-probabilities of a window's scored positions, step by step."""
    rows: LogRows = []

    def keep(engine: Engine, request: Request, positions: np.ndarray, logits: Tensor) -> None:
        rows.append((positions, torch.log_softmax(logits, -1)))

    with build(len(window.token_ids)) as engine:
        run_window(engine, window, steps, keep, stop=stop)
    return rows


def score_window(
    contender: Contender,
    window: Window,
    steps: list[int],
    held: LogRows,
    stop: Callable[[], bool] = lambda: False,
) -> TokenScores:
    """A contender's scores of one window; its bytes are counted at the end of its first."""
    parts: list[TokenScores] = []
    tokens = np.array(window.token_ids)
    last = len(tokens) - 1
    count_bytes = contender.bytes is None

    def score(engine: Engine, request: Request, positions: np.ndarray, logits: Tensor) -> None:
        expected, log_full = held[len(parts)]
        if not np.array_equal(expected, positions):
            raise SettingError(
                f"{contender.name} computes other tokens a step than the full cache: leave the "
                "scheduling settings out"
            )
        mask = reads_compressed(engine, request, positions)
        log_ours = torch.log_softmax(logits, -1)
        parts.append(score_rows(log_full, log_ours, tokens[positions + 1], positions, mask))
        if count_bytes and request.num_computed_tokens > last:
            contender.bytes = byte_report(engine, request)

    with contender.build(len(tokens)) as engine:
        if count_bytes:
            prepare(engine)
        run_window(engine, window, steps, score, contender.after_context, stop)
    return join(parts)


def _needle(depth: float, scores: TokenScores) -> NeedleScore:
    return NeedleScore(
        depth=depth,
        logprob_full=float(-scores.nll_full.sum()),
        logprob=float(-scores.nll.sum()),
        exact_full=bool((scores.best_full == scores.targets).all()),
        exact=bool((scores.best == scores.targets).all()),
    )
