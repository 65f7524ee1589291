"""A fifth of the tokens kept: which policy and split lose least, and what the model still says."""

import math
from collections.abc import Callable, Iterable

from workbench.errors import WorkbenchError
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel
from workbench.quality.engines import Changes, full_changes, lab_engine, schedule
from workbench.quality.metrics import TokenScores, join
from workbench.quality.peers_presses import EXACT, compressed_only, run_kept
from workbench.quality.plan import QualityPlan
from workbench.quality.run import LogRows, full_rows
from workbench.quality.texts import Window, text_windows
from workbench.settings.retention import RETENTION_POLICIES

Tell = Callable[[str], None]
Choice = tuple[str, str]  # policy and split
SHARE = 0.2
CLAIM = 90  # % of quality that articles say is kept
SINKS, WINDOW = 4, 32
NUM_BEST = 2
OTHER_SPLITS = ("pyramid", "ada", "ada+pyramid")
SKIPPED = ("none", "random")


def measure_kept(model: LoadedModel, plan: QualityPlan, tell: Tell) -> list[Figure]:
    """Top-1 agreement with a fifth of the context kept, by the best policy and split.

    All policies with equal shares on the first window, the best two with every split, then the
    best on the windows that did not choose it.
    """
    windows = compressed_only(text_windows(model.tokenizer, plan))
    runs = _Runs(model, plan, tell)
    uniform = [(policy, "uniform") for policy in RETENTION_POLICIES if policy not in SKIPPED]
    first = runs.first_window(windows[0], uniform)
    best = sorted(first, key=lambda choice: -_top1(first[choice]))[:NUM_BEST]
    first |= runs.first_window(
        windows[0], [(policy, split) for policy, _ in best for split in OTHER_SPLITS]
    )
    chosen = max(first, key=lambda choice: (_top1(first[choice]), -float(first[choice].kl.mean())))
    rest = [runs.scores(window, chosen, runs.full(window)) for window in windows[1:]]
    scores = join(rest or [first[chosen]])
    table = ", ".join(
        f"{policy} {split} {100 * _top1(first[policy, split]):.0f} %" for policy, split in first
    )
    return [figure(chosen, scores, plan, runs.budget, table)]


def figure(
    chosen: Choice, scores: TokenScores, plan: QualityPlan, budget: int, table: str
) -> Figure:
    """The figure, with what it says about the claim."""
    share = 100 * _top1(scores)
    spread = 196 * (_top1(scores) * (1 - _top1(scores)) / len(scores)) ** 0.5
    full = float(scores.nll_full.mean())
    lost = float(scores.nll.mean()) - full
    verdict = "is neither shown nor refuted"
    if abs(share - CLAIM) > spread:
        verdict = "holds" if share > CLAIM else "does not hold"
    note = (
        f"{chosen[0]} with split {chosen[1]}, {budget} of {plan.context} tokens a head, "
        f"{len(scores)} scored tokens (95 %: {share - spread:.0f} to {share + spread:.0f} %), "
        f"KL {float(scores.kl.mean()):.3g}, perplexity times {math.exp(lost):.3f}. Articles say "
        f"that 5-20 % of the tokens keep {CLAIM} % of the quality; as agreement with the full "
        f"cache that {verdict} for this 135M model on this text. First window: {table}"
    )
    return Figure(name="top1_at_20pct_kept", value=share, unit="%", note=note)


class _Runs:
    """Runs of windows with a fifth of their context kept."""

    def __init__(self, model: LoadedModel, plan: QualityPlan, tell: Tell) -> None:
        self.budget = round(SHARE * plan.context)
        self._model = model
        self._plan = plan
        self._tell = tell

    def full(self, window: Window) -> LogRows:
        """The full cache's rows."""
        model = self._model
        steps = schedule(window, self._plan, None)
        return full_rows(lambda size: lab_engine(model, full_changes(model), size), window, steps)

    def first_window(self, window: Window, choices: Iterable[Choice]) -> dict[Choice, TokenScores]:
        """Scores of every choice that there can be."""
        held, found = self.full(window), {}
        for choice in choices:
            try:
                found[choice] = self.scores(window, choice, held)
            except WorkbenchError as error:
                self._tell(f"{choice[0]} with split {choice[1]}: {error}")
        return found

    def scores(self, window: Window, choice: Choice, held: LogRows) -> TokenScores:
        """One window under a policy and a split."""
        self._tell(f"a fifth kept: {choice[0]} with split {choice[1]}")
        return run_kept(self._model, self._changes(choice), window, self._plan, held).scores

    def _changes(self, choice: Choice) -> Changes:
        return {
            **full_changes(self._model),
            **EXACT,
            "retention.policy": choice[0],
            "retention.split": choice[1],
            "retention.sink_tokens": SINKS,
            "retention.window_tokens": min(WINDOW, self.budget // 2),
            "retention.budget_tokens": self.budget,
        }


def _top1(scores: TokenScores) -> float:
    return float((scores.best == scores.best_full).mean())
