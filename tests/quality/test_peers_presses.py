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
    PRESSES,
    TIE,
    compare_kept,
    compressed_only,
    press_changes,
    run_kept,
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

    def after(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.q[layer].append(q)
        self.k[layer].append(k)


@pytest.fixture(scope="module")
def window(model):
    return compressed_only(text_windows(model.tokenizer, PLAN))[0]


@pytest.fixture(scope="module")
def held(model, window):
    build = lambda size: lab_engine(model, full_changes(model), size)  # noqa: E731
    return full_rows(build, window, schedule(window, PLAN, None))


@pytest.fixture(scope="module")
def context(model, window):
    """Attention [L, Hkv, G, T, T] and keys [L, Hkv, T, D] of the context, float64."""
    collected = Collect(model.arch.num_layers)
    with (
        lab_engine(model, full_changes(model), len(window.token_ids)) as engine,
        hooked(engine, collected),
    ):
        run_window(engine, window, schedule(window, PLAN, None), lambda *rows: None)
    q, k = (
        torch.stack([torch.cat(parts)[: window.context] for parts in layers]).double()
        for layers in (collected.q, collected.k)
    )  # [L, T, H, D]
    heads = k.shape[2]
    scores = torch.einsum("lthgd,lshd->lhgts", q.unflatten(2, (heads, -1)), k)
    scores *= q.shape[-1] ** -0.5
    later = torch.ones(window.context, window.context).triu(1).bool()
    return scores.masked_fill(later, -torch.inf).softmax(-1), k.transpose(1, 2)


def press_scores(press: str, attention: Tensor, keys: Tensor, num_kept: int) -> Tensor:
    """Scores [L, Hkv, T] as each article and press has them; the newest token stays."""
    layers, heads, _, count, _ = attention.shape
    scores = torch.zeros(layers, heads, count, dtype=torch.float64)
    if press == "streaming_llm":
        scores[..., :4] = scores[..., -(num_kept - 4) :] = 1
    elif press == "snapkv":
        seen = attention[..., -64:, :-64].mean(-2)  # [L, Hkv, G, T - 64]
        pooled = avg_pool1d(seen.flatten(0, 1), 5, stride=1, padding=2).unflatten(0, (layers, -1))
        scores[..., :-64] = pooled.mean(2)
        scores[..., -64:] = 2
    elif press == "tova":
        scores[:] = attention[..., -1, :].mean((1, 2))[:, None]
    elif press == "observed_attention":
        scores[:] = (attention.sum(-2) / torch.arange(count, 0, -1)).mean(2)
    else:
        scores[:] = -keys.norm(dim=-1)
    scores[..., -1] = scores.max() + 1
    return scores


@pytest.mark.parametrize("num_kept", [120, 80, 70])
@pytest.mark.parametrize("press", PRESSES)
def test_what_stays_is_what_the_press_scores_best(model, window, held, context, press, num_kept):
    run = run_kept(model, press_changes(model, press, num_kept), window, PLAN, held)
    scores = press_scores(press, *context, num_kept)
    best = torch.zeros(scores.shape, dtype=torch.bool)
    best.scatter_(-1, scores.topk(num_kept, dim=-1).indices, True)
    assert (run.kept.sum(-1) == num_kept).all()
    found = compare_kept(run.kept, best.numpy(), scores.numpy())
    assert found.num_counted == 0, found
    assert len(run.scores) == window.num_scored and (run.scores.kl > 0).any()


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
