"""Our retention beside kvpress: the same windows, the same numbers of tokens, what stays and KL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, log_softmax

from workbench.engine.engine import Engine
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel
from workbench.quality.engines import (
    Changes,
    full_changes,
    lab_engine,
    observed_tail,
    run_window,
    schedule,
)
from workbench.quality.metrics import TokenScores, join, score_rows
from workbench.quality.peers_process import PressesAnswer, PressRun
from workbench.quality.plan import QualityPlan
from workbench.quality.run import LogRows, full_rows
from workbench.quality.stored import stored_slots
from workbench.quality.texts import Window
from workbench.request import Request

Tell = Callable[[str], None]
# Relative distance of scores below which either token may stay: they are fp32 sums of exponentials,
# which two CPUs of ours round up to 2e-6 apart.
TIE = 1e-5

# fmt: off
# A press, and our settings for it: sinks and window as the press has them
PRESSES: dict[str, Changes] = {
    "streaming_llm": {"retention.policy": "sink+window", "retention.sink_tokens": 4},
    "snapkv": {"retention.policy": "snapkv", "retention.window_tokens": 64},
    # one choice for all heads of a layer, as in the article
    "tova": {"retention.policy": "tova", "cache.grouping": "layer"},
    "observed_attention": {"retention.policy": "attention-mass"},
    "knorm": {"retention.policy": "key-norm"},
    "expected_attention": {
        "retention.policy": "expected-attention", "retention.sink_tokens": 4,
    },
    # without a floor: the article mixes one in, the press keeps each head's best of it apart
    "adakv_snapkv": {
        "retention.policy": "snapkv", "retention.window_tokens": 64,
        "retention.split": "ada", "retention.ada_floor": 0.0,
    },
}
HEADS_COMPETE = ("adakv_snapkv",)  # one choice among all tokens of a layer's heads
# fmt: on
EXACT: Changes = {
    "cache.grouping": "head",
    "cache.block_size": 4,
    "retention.level": "token",
    "retention.when": "prefill",
    "retention.split": "uniform",
    "retention.sink_tokens": 0,
    "retention.window_tokens": 1,
}


@dataclass(frozen=True)
class KeptRun:
    """One window under a policy: scores, and what stayed, bool [L, Hkv, context]."""

    scores: TokenScores
    kept: np.ndarray


@dataclass(frozen=True)
class Difference:
    """How two choices differ; a swap counts where the scores are not tied.

    `num_heads` of all (layer, KV head) pairs differ; `num_swapped` tokens, `num_counted` of them
    beyond a tie; `worst` relative distance of scores among the swapped.
    """

    num_heads: int
    num_swapped: int
    num_counted: int
    worst: float


def press_changes(model: LoadedModel, press: str, num_kept: int) -> Changes:
    """Our settings for a press that keeps so many tokens a head."""
    budget: Changes = {"retention.budget_tokens": num_kept}
    return {**full_changes(model), **EXACT, **PRESSES[press], **budget}


def run_kept(
    model: LoadedModel, changes: Changes, window: Window, plan: QualityPlan, held: LogRows
) -> KeptRun:
    """Read a window under a policy that acts once, when the context was read.

    held: the full cache's rows of the same scored steps.
    """
    parts: list[TokenScores] = []
    kept: list[np.ndarray] = []
    tokens = np.array(window.token_ids)

    def look(engine: Engine, request: Request, positions: np.ndarray, logits: Tensor) -> None:
        if not kept:
            kept.append(stored_slots(engine, window.context, np.empty(0, np.int64)))
        _, log_full = held[len(parts)]
        every = np.ones(len(positions), bool)
        log_ours = log_softmax(logits, -1)
        parts.append(score_rows(log_full, log_ours, tokens[positions + 1], positions, every))

    tail = observed_tail(model, changes, plan)
    with lab_engine(model, changes, len(tokens)) as engine:
        run_window(engine, window, schedule(window, plan, tail), look)
    return KeptRun(join(parts), kept[0])


def compare_kept(ours: np.ndarray, theirs: np.ndarray, scores: np.ndarray) -> Difference:
    """What stayed in ours and in theirs, bool [L, Hkv, T], by their scores fp32 [L, Hkv, T].

    In each head, tokens that only ours kept stand against those that only theirs kept, sorted by
    score; a token without a partner always counts.
    """
    heads = swapped = counted = 0
    worst = 0.0
    for layer, head in np.argwhere((ours != theirs).any(-1)):
        heads += 1
        values = scores[layer, head].astype(np.float64)
        mine = np.sort(values[ours[layer, head] & ~theirs[layer, head]])
        other = np.sort(values[theirs[layer, head] & ~ours[layer, head]])
        pairs = min(len(mine), len(other))
        size = np.maximum(np.abs(mine[:pairs]), np.abs(other[:pairs]))
        distance = np.abs(mine[:pairs] - other[:pairs]) / np.maximum(size, 1e-30)
        swapped += max(len(mine), len(other))
        counted += int((distance > TIE).sum()) + abs(len(mine) - len(other))
        worst = max([worst, *distance.tolist()])
    return Difference(heads, swapped, counted, worst)


def unfreed(ours: np.ndarray, theirs: np.ndarray, block_size: int) -> np.ndarray:
    """Heads that lose nothing here because what they lose there would free no page: bool [L, Hkv].

    Of bool [L, Hkv, T]. Where heads compete one may lose a token or two, and nothing is moved for
    that (`structural/retention/selection.py`).
    """
    num_tokens = ours.shape[-1]
    left = theirs.sum(-1)
    same_pages = -(-left // block_size) == -(-num_tokens // block_size)
    found: np.ndarray = ours.all(-1) & (left < num_tokens) & same_pages
    return found


def chosen_from(press: str, values: np.ndarray) -> np.ndarray:
    """Values [L, Hkv, T] of a press as [L, choices, tokens to choose from]."""
    return values.reshape(len(values), 1, -1) if press in HEADS_COMPETE else values


def compressed_only(windows: list[Window]) -> list[Window]:
    """The same windows without the row that the context itself predicts: its read was exact."""
    return [replace(window, score_from=window.context) for window in windows]


def measure_presses(
    model: LoadedModel,
    plan: QualityPlan,
    windows: list[Window],
    theirs: PressesAnswer,
    arrays: Mapping[str, np.ndarray],
    tell: Tell,
) -> list[Figure]:
    """What stays and KL of every press and ratio beside ours, and the two figures over all."""
    steps = schedule(windows[0], plan, None)
    full = [
        full_rows(lambda size: lab_engine(model, full_changes(model), size), window, steps)
        for window in windows
    ]
    figures, counted, num_unfreed, widest = [], 0, 0, 0.0
    for press, ratios in theirs.presses.items():
        for ratio, run in ratios.items():
            tell(f"ours, {press}: {run.kept} tokens kept")
            changes = press_changes(model, press, run.kept)
            scores, found = [], []
            for number, window in enumerate(windows):
                key = f"{press}/{ratio}/{number}"
                ours = run_kept(model, changes, window, plan, full[number])
                packed = np.unpackbits(arrays[f"kept/{key}"], axis=-1, count=window.context)
                kept = packed.astype(bool)
                stays = unfreed(ours.kept, kept, EXACT["cache.block_size"])
                num_unfreed += int((~kept[stays]).sum())
                kept |= stays[..., None]
                sides = ours.kept, kept, arrays[f"scores/{key}"]
                found.append(compare_kept(*(chosen_from(press, side) for side in sides)))
                scores.append(ours.scores)
            kl = float(join(scores).kl.mean())
            counted += sum(item.num_counted for item in found)
            widest = max(widest, abs(kl - run.mean_kl))
            figures.append(_press_figure(press, ratio, kl, run, found))
    note = f"kvpress at {plan.context} tokens, {len(windows)} windows, presses: " + ", ".join(
        theirs.presses
    )
    return [
        *figures,
        Figure(name="kept_sets_equal", value=int(counted == 0),
               note=f"{counted} tokens differ beyond a tie of {TIE:g}; {num_unfreed} stayed here "
               f"in heads where their going frees no page; {note}"),
        Figure(name="kl_press_difference_max", value=widest, unit="nats/token", note=note),
    ]  # fmt: skip


def _press_figure(
    press: str, ratio: str, kl: float, run: PressRun, found: list[Difference]
) -> Figure:
    """Our KL under one policy; what differs stands in the note."""
    swapped, counted = (
        sum(getattr(item, name) for item in found) for name in ("num_swapped", "num_counted")
    )
    note = f"kvpress {run.mean_kl:.5g}; {run.kept} tokens kept; {swapped} swapped"
    if swapped:
        worst = max(item.worst for item in found)
        note += f", {counted} of them beyond a tie (scores apart by up to {worst:.1g})"
    if run.newest_dropped:
        note += (
            f"; the press alone would drop the newest token in {run.newest_dropped} heads: it was "
            "kept on both sides, as other presses keep it"
        )
    name = f"kl_press_{press}_{round(100 * float(ratio))}pct_evicted"
    return Figure(name=name, value=kl, unit="nats/token", note=note)
