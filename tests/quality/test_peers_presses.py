"""What our policies keep is what each press's formula says, recomputed from q and k in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import avg_pool1d

from workbench.quality.engines import full_changes, lab_engine, run_window, schedule
from workbench.quality.hooks import AttendHook, hooked
from workbench.quality.peers_presses import (
    HEADS_COMPETE,
    PRESSES,
    TIE,
    KeptRun,
    chosen_from,
    compare_kept,
    compressed_only,
    press_changes,
    run_kept,
    unfreed,
)
from workbench.quality.plan import QualityPlan
from workbench.quality.run import full_rows
from workbench.quality.texts import text_windows

PLAN = QualityPlan(context=160, scored=32, num_windows=1, weight_format="fp32")


class Collect(AttendHook):
    """Queries and keys of every layer as they came."""

    def __init__(self, num_layers: int) -> None:
        self.q: list[list[Tensor]] = [[] for _ in range(num_layers)]
        self.k: list[list[Tensor]] = [[] for _ in range(num_layers)]
        self.v: list[list[Tensor]] = [[] for _ in range(num_layers)]

    def after(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.q[layer].append(q)
        self.k[layer].append(k)
        self.v[layer].append(v)


@pytest.fixture(scope="module")
def window(model):
    return compressed_only(text_windows(model.tokenizer, PLAN))[0]


@pytest.fixture(scope="module")
def held(model, window):
    build = lambda size: lab_engine(model, full_changes(model), size)  # noqa: E731
    return full_rows(build, window, schedule(window, PLAN, None))


@pytest.fixture(scope="module")
def context(model, window):
    """Attention [L, Hkv, G, T, T], q [L, T, Hkv, G, D], k and v [L, Hkv, T, D], float64."""
    collected = Collect(model.arch.num_layers)
    with (
        lab_engine(model, full_changes(model), len(window.token_ids)) as engine,
        hooked(engine, collected),
    ):
        run_window(engine, window, schedule(window, PLAN, None), lambda *rows: None)
    q, k, v = (
        torch.stack([torch.cat(parts)[: window.context] for parts in layers]).double()
        for layers in (collected.q, collected.k, collected.v)
    )  # [L, T, H, D]
    heads = k.shape[2]
    q = q.unflatten(2, (heads, -1))
    scores = torch.einsum("lthgd,lshd->lhgts", q, k)
    scores *= q.shape[-1] ** -0.5
    later = torch.ones(window.context, window.context).triu(1).bool()
    attention = scores.masked_fill(later, -torch.inf).softmax(-1)
    return attention, q, k.transpose(1, 2), v.transpose(1, 2)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def expected(model, q: Tensor, keys: Tensor, values: Tensor, reduce: str) -> Tensor:
    """Scores [L, Hkv, T - 4] of Expected Attention."""
    count, dim = q.shape[1], q.shape[-1]
    frequencies = torch.tensor(model.arch.inverse_frequencies(), dtype=torch.float64)
    angles = torch.arange(count + 512)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    here = (slice(count), None, None)
    before = turned(q, cos[here], -sin[here])[:, 4:]
    rotation = cos[count:].mean(0), sin[count:].mean(0)
    matrix = turned(torch.eye(dim, dtype=torch.float64), *rotation).T
    mean = before.mean(1)  # [L, Hkv, G, D]
    around = before - mean[:, None]
    covariance = torch.einsum("lthgi,lthgj->lhgij", around, around) / len(around[0])
    mean, covariance = mean @ matrix.T, matrix @ covariance @ matrix.T
    k = keys[:, :, 4:]
    logits = torch.einsum("lhgd,lhtd->lhgt", mean, k) / dim**0.5
    logits += torch.einsum("lhti,lhgij,lhtj->lhgt", k, covariance, k) / (2 * dim)
    return reduced(logits.softmax(-1), 2, reduce) * values[:, :, 4:].norm(dim=-1)


def reduced(x: Tensor, dim: int, how: str) -> Tensor:
    return {"mean": x.mean, "sum": x.sum, "max": x.amax}[how](dim)


def press_scores(
    model, press: str, attention: Tensor, q: Tensor, keys: Tensor, values: Tensor, num_kept: int,
    reduce: str = "mean",
) -> Tensor:  # fmt: skip
    """Scores [L, Hkv, T] as each article and press has them; the newest token stays."""
    layers, heads, _, count, _ = attention.shape
    scores = torch.zeros(layers, heads, count, dtype=torch.float64)
    if press == "streaming_llm":
        scores[..., :4] = scores[..., -(num_kept - 4) :] = 1
    elif "snapkv" in press:
        seen = attention[..., -64:, :-64].mean(-2)  # [L, Hkv, G, T - 64]
        seen = reduced(seen, 2, reduce)
        scores[..., :-64] = avg_pool1d(seen, 5, stride=1, padding=2)
        scores[..., -64:] = 2
    elif press == "tova":
        scores[:] = reduced(attention[..., -1, :], 2, reduce).mean(1)[:, None]
    elif press == "observed_attention":
        scores[:] = (attention.sum(-2) / torch.arange(count, 0, -1)).mean(2)
    elif press == "expected_attention":
        scores[:] = 1e9
        scores[..., 4:] = expected(model, q, keys, values, reduce)
    else:
        scores[:] = -keys.norm(dim=-1)
    scores[..., -1] = scores.max() + 1
    return scores


@pytest.mark.parametrize("num_kept", [120, 80, 70])
@pytest.mark.parametrize("press", PRESSES)
def test_what_stays_is_what_the_press_scores_best(model, window, held, context, press, num_kept):
    run = run_kept(model, press_changes(model, press, num_kept), window, PLAN, held)
    check(run, press_scores(model, press, *context, num_kept), num_kept, press)
    assert len(run.scores) == window.num_scored and (run.scores.kl > 0).any()


@pytest.mark.parametrize("reduce", ["max", "sum"])
@pytest.mark.parametrize("press", ["snapkv", "tova", "expected_attention"])
def test_query_heads_are_reduced_as_the_setting_says(model, window, held, context, press, reduce):
    changes = press_changes(model, press, 80) | {"retention.gqa_reduce": reduce}
    run = run_kept(model, changes, window, PLAN, held)
    check(run, press_scores(model, press, *context, 80, reduce), 80, press)


def check(run: KeptRun, scores: Tensor, num_kept: int, press: str) -> None:
    ours, values = (torch.from_numpy(chosen_from(press, np.asarray(side))) for side in
                    (run.kept, scores))  # fmt: skip
    num_chosen = num_kept * (scores.shape[1] if press in HEADS_COMPETE else 1)
    best = torch.zeros(values.shape, dtype=torch.bool)
    best.scatter_(-1, values.topk(num_chosen, dim=-1).indices, True)
    assert (ours.sum(-1) == num_chosen).all()
    found = compare_kept(ours.numpy(), best.numpy(), values.numpy())
    assert found.num_counted == 0, found


def test_all_tokens_kept_cost_nothing(model, window, held):
    run = run_kept(model, press_changes(model, "tova", window.context), window, PLAN, held)
    assert run.kept.all()
    assert np.abs(run.scores.kl).max() < 1e-6


def kept(*tokens: int) -> np.ndarray:
    row = np.zeros((1, 1, 8), bool)
    row[..., list(tokens)] = True
    return row


def test_ties_do_not_count():
    scores = np.arange(1.0, 9.0).reshape(1, 1, 8)
    same = compare_kept(kept(5, 6, 7), kept(5, 6, 7), scores)
    assert (same.num_heads, same.num_swapped, same.num_counted, same.worst) == (0, 0, 0, 0.0)
    other = compare_kept(kept(4, 6, 7), kept(5, 6, 7), scores)
    assert (other.num_heads, other.num_swapped, other.num_counted) == (1, 1, 1)
    assert other.worst == pytest.approx(1 / 6)
    scores[..., 4] = 6 * (1 - TIE / 2)
    assert compare_kept(kept(4, 6, 7), kept(5, 6, 7), scores).num_counted == 0
    assert compare_kept(kept(4, 6, 7), kept(5, 6, 7), scores).num_swapped == 1
    assert compare_kept(kept(6, 7), kept(5, 6, 7), scores).num_counted == 1  # no partner


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_a_difference_is_the_same_from_both_sides(ours: set[int], theirs: set[int]):
    scores = np.linspace(-1, 1, 8).reshape(1, 1, 8)
    there = compare_kept(kept(*ours), kept(*theirs), scores)
    assert there == compare_kept(kept(*theirs), kept(*ours), scores)
    assert (there.num_swapped == 0) == (ours == theirs)


def test_a_head_that_would_free_no_page_keeps_its_few_tokens() -> None:
    """Pages of four: of 12 tokens three may go for nothing, the fourth frees a page."""
    ours = np.ones((1, 4, 12), bool)
    theirs = ours.copy()
    theirs[0, 0, :3] = False
    theirs[0, 1, :4] = False
    theirs[0, 2, :1] = False
    ours[0, 2, 9] = False
    assert unfreed(ours, theirs, 4).tolist() == [[True, False, False, False]]
