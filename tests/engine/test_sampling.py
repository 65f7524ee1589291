"""Sampling depends on (seed, sample index, position) and the logits, and on nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, pages, spec, tokens
from workbench.engine.sampling import argmax, draw, uniform
from workbench.request import SamplingParams

WARM = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "seed": 7}


def test_stream_is_the_same_alone_and_in_a_batch() -> None:
    prompt = tokens(21)
    alone = Runner(build()).one(prompt, 24, **WARM)
    crowd = Runner(build())
    for seed in range(4):
        crowd.add(tokens(30, seed), 10, temperature=1.0, seed=seed)
    mine = crowd.add(prompt, 24, **WARM)
    crowd.drain()
    assert crowd.outputs[mine] == alone


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_stream_is_the_same_after_preemption(preemption: str) -> None:
    prompt = tokens(21)
    alone = Runner(build()).one(prompt, 60, **WARM)
    tight = Runner(build({"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 0.5,
                          "scheduling.preemption": preemption}))  # fmt: skip
    tight.add(tokens(50, 1), 60)
    mine = tight.add(prompt, 60, **WARM)
    tight.drain()
    assert tight.engine.finished[mine].num_preemptions > 0
    assert tight.outputs[mine] == alone


@pytest.mark.parametrize("received", [0, 1, 9, 23])
def test_stream_goes_on_after_a_restart(received: int) -> None:
    prompt = tokens(21)
    whole = Runner(build()).one(prompt, 24, **WARM)
    restarted = Runner(build())
    rest = restarted.one(prompt, 24, resume_tokens=whole[:received], **WARM)
    assert whole[:received] + rest == whole


def test_nothing_is_sampled_after_a_stream_that_is_complete() -> None:
    prompt = tokens(9)
    whole = Runner(build()).one(prompt, 8)
    runner = Runner(build())
    request_id = runner.add(prompt, 8, resume_tokens=whole)
    runner.drain()
    assert runner.outputs[request_id] == []
    assert runner.status[request_id] == "finished_length"


def test_stream_that_ended_is_not_begun_again() -> None:
    runner = Runner(build())
    end = next(iter(runner.engine.model.tokenizer.eos_ids))
    request_id = runner.add(tokens(9), 8, resume_tokens=[4, end], ignore_eos=False)
    runner.drain()
    assert runner.outputs[request_id] == []
    assert runner.status[request_id] == "finished_stopped"


def test_samples_differ_by_index_and_seed() -> None:
    prompt = tokens(12)
    runner = Runner(build())
    ids = [runner.add(prompt, 16, temperature=1.0, seed=seed, sample_index=index)
           for seed, index in ((1, 0), (1, 1), (2, 0), (1, 0))]  # fmt: skip
    runner.drain()
    first, other, third, same = (runner.outputs[request_id] for request_id in ids)
    assert first == same
    assert len({tuple(first), tuple(other), tuple(third)}) == 3


def test_uniform_numbers_are_uniform() -> None:
    points = np.array([uniform(SamplingParams(seed=seed), position)
                       for seed in range(40) for position in range(50)])  # fmt: skip
    assert 0 <= points.min() and points.max() < 1
    counts = np.histogram(points, 10, (0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # chi square, 9 degrees, p = 0.001


def _counts(logits: torch.Tensor, **params: float) -> np.ndarray:
    drawn = [draw(logits, SamplingParams(seed=11, **params), position) for position in range(2000)]
    return np.bincount(drawn, minlength=len(logits))


def _assert_law(counts: np.ndarray, law: np.ndarray) -> None:
    assert counts[law == 0].sum() == 0
    expected = law[law > 0] * counts.sum()
    statistic = ((counts[law > 0] - expected) ** 2 / expected).sum()
    assert statistic < 29.6  # chi square, at most 10 degrees, p = 0.001


LOGITS = torch.tensor([0.3, 2.0, -1.0, 1.2, 0.9, 1.9, -0.5, 0.0])


def test_temperature_law() -> None:
    law = torch.softmax(LOGITS / 0.7, 0).double().numpy()
    _assert_law(_counts(LOGITS, temperature=0.7), law)


@pytest.mark.parametrize("top_k", [1, 3, 8, 100])
def test_top_k_law(top_k: int) -> None:
    law = torch.softmax(LOGITS, 0).double().numpy()
    law[np.argsort(-law)[top_k:]] = 0
    _assert_law(_counts(LOGITS, temperature=1.0, top_k=top_k), law / law.sum())


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.8, 1.0])
def test_top_p_law(top_p: float) -> None:
    law = torch.softmax(LOGITS, 0).double().numpy()
    order = np.argsort(-law)
    kept = int(np.searchsorted(law[order].cumsum(), top_p)) + 1
    law[order[kept:]] = 0
    _assert_law(_counts(LOGITS, temperature=1.0, top_p=top_p), law / law.sum())


def test_top_p_counts_within_top_k() -> None:
    """top-k first, then top-p over what is left of the mass, as vLLM orders them."""
    law = torch.softmax(LOGITS, 0).double().numpy()
    law[np.argsort(-law)[3:]] = 0
    law /= law.sum()
    order = np.argsort(-law)
    kept = int(np.searchsorted(law[order].cumsum(), 0.6)) + 1
    law[order[kept:]] = 0
    _assert_law(_counts(LOGITS, temperature=1.0, top_k=3, top_p=0.6), law / law.sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 8.0])  # few tokens reach top-p, or many do
@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999])
def test_few_ranked_tokens_draw_what_a_whole_sort_draws(temperature: float, top_p: float) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(3)) * 4
    probs = torch.softmax(logits / temperature, 0).double().numpy()
    order = np.argsort(-probs, kind="stable")
    cumulative = probs[order].cumsum()
    cumulative = cumulative[: int(np.searchsorted(cumulative, top_p)) + 1]
    for position in range(50):
        params = SamplingParams(seed=5, temperature=temperature, top_p=top_p)
        place = np.searchsorted(cumulative, uniform(params, position) * cumulative[-1], "right")
        found = order.tolist().index(draw(logits, params, position))
        assert abs(found - min(place, len(cumulative) - 1)) <= 1  # fp32 sums end a little apart


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-310])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    prompt = tokens(12)
    greedy = Runner(build()).one(prompt, 8)
    assert Runner(build()).one(prompt, 8, temperature=temperature) == greedy


def test_end_of_text_stops_unless_it_is_ignored() -> None:
    engine = build()
    eos = next(iter(engine.model.tokenizer.eos_ids))
    assert spec(tokens(3), ignore_eos=False).sampling.ignore_eos is False
    for ignore in (True, False):
        runner = Runner(build())
        ids = [runner.add(tokens(8, seed), 120, temperature=3.0, seed=seed, ignore_eos=ignore)
               for seed in range(3)]  # fmt: skip
        runner.drain()
        for request_id in ids:
            out = runner.outputs[request_id]
            if ignore or eos not in out:
                assert len(out) == 120
            else:
                assert out.index(eos) == len(out) - 1
                assert runner.status[request_id] == "finished_stopped"


@settings(deadline=None)
@given(
    vocab=st.sampled_from([1, 127, 128, 384, 1000]),
    levels=st.sampled_from([1, 2, 1000]),
    odd=st.sampled_from([0.0, float("nan"), float("-inf"), float("inf")]),
    seed=st.integers(0, 999),
)
def test_the_largest_is_torchs_whatever_is_equal_or_no_number(
    vocab: int, levels: int, odd: float, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (5, vocab), generator=draws).float()
    logits[3, torch.randint(vocab, (2,), generator=draws)] = odd
    assert torch.equal(argmax(logits), logits.argmax(-1))
