"""A decoder on several ranks gives what one process gives, and moves what the formula says."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from workbench.errors import CapacityError, RequestError
from workbench.model.arch import ModelArch
from workbench.model.fetch import cached_path
from workbench.model.load import load_model
from workbench.model.naive import naive_greedy, naive_logits
from workbench.spatial.devices.group import DeviceGroup, GroupOptions
from workbench.spatial.devices.placement import experts, pipeline, tensor_parallel
from workbench.spatial.devices.sources import ModelSource, one_process

ARCH = ModelArch("random", 4, 96, 6, 3, 16, 128, 256)
BIASED = replace(ARCH, qk_norm=True, attention_bias=True, output_bias=True, tie_embeddings=True)
DENSE, MOE = ModelSource(arch=BIASED), ModelSource(arch=replace(ARCH, qk_norm=True), num_experts=8)
PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], list(range(40)), [200]]
NEW = 32
PLACEMENTS = {
    "tp2": (DENSE, tensor_parallel(BIASED, 2)),  # uneven: 2 + 1 KV heads
    "tp3": (DENSE, tensor_parallel(BIASED, 3)),
    "pp2": (DENSE, pipeline(BIASED, 2)),
    "ep2": (MOE, experts(MOE.moe, 2)),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module", params=PLACEMENTS)
def group(request: pytest.FixtureRequest) -> Iterator[DeviceGroup]:
    source, placement = PLACEMENTS[request.param]
    with DeviceGroup(source, placement, GroupOptions(kv_tokens=1024)) as made:
        yield made


def test_logits_and_greedy_tokens_equal_one_process(group: DeviceGroup) -> None:
    whole = one_process(group.source)
    result = group.step(dict(enumerate(PROMPTS)), every_row=True, want_logits=True)
    expected = torch.cat([naive_logits(whole, prompt) for prompt in PROMPTS])
    assert result.logits is not None
    assert (result.logits - expected).abs().max() <= 1e-4
    assert result.tokens == result.logits.argmax(-1).tolist()
    group.free(range(4))
    for prompt, text in zip(PROMPTS, group.generate(PROMPTS, NEW), strict=True):
        tokens, margins = naive_greedy(whole, prompt, NEW)
        assert min(margins) > 1e-3  # else equal tokens would not be owed
        assert text == tokens


def test_bytes_moved_equal_the_formula(group: DeviceGroup) -> None:
    group.report(reset=True)
    group.generate(PROMPTS, 8)
    report = group.report(reset=True)
    assert report.tokens == sum(map(len, PROMPTS)) + 7 * 4 and report.steps == 8
    assert report.moved_per_token.keys() == report.formula_per_token.keys()
    for kind, measured in report.moved_per_token.items():
        near = 0.25 if kind == "all_to_all" else 1e-9  # a real router is not even
        assert measured == pytest.approx(report.formula_per_token[kind], rel=near), kind
    assert report.moved_per_token


def test_every_rank_makes_the_same_collectives(group: DeviceGroup) -> None:
    group.report(reset=True)
    group.generate(PROMPTS[:1], 3)  # with experts the second rank has no row at all
    group.generate(PROMPTS, 3)
    report = group.report(reset=True)
    if report.kind == "pipeline":  # two micro-batches, where there are two sequences
        assert [rank.traffic["send"].calls for rank in report.ranks] == [3 + 3 * 2, 0]
        return
    calls = [{kind: t.calls for kind, t in rank.traffic.items()} for rank in report.ranks]
    assert all(each == calls[0] for each in calls)
    a_step = {"all_reduce": 8} if report.kind == "tensor" else {
        "all_to_all": 8, "all_to_all_counts": 4}  # fmt: skip
    assert {kind: n for kind, n in calls[0].items() if n} == {k: 6 * n for k, n in a_step.items()}


def test_balance_is_that_of_the_placement(group: DeviceGroup) -> None:
    group.report(reset=True)
    group.generate(PROMPTS, 4)
    report = group.report(reset=True)
    whole = one_process(group.source)
    if report.kind == "tensor":
        assert report.kv_balance == pytest.approx(group.placement.imbalance)
        assert {rank.rows for rank in report.ranks} == {report.tokens}
        assert all(rank.weight_bytes < whole.weight_bytes for rank in report.ranks)
    if report.kind == "experts":
        loads = [load for rank in report.ranks for load in rank.expert_load]
        rows = 3 * (sum(map(len, PROMPTS)) + 3 * 4) + 4 * 4  # the last layer: 4 rows a step
        assert sum(loads) == 2 * rows and len(loads) == 8
        busiest = sum(map(len, PROMPTS[::2])) + 3 * 2
        assert report.token_balance == pytest.approx(2 * busiest / report.tokens)
        assert 1.0 <= report.expert_balance <= report.hottest_expert
    assert report.wall_s > 0 and all(rank.comm_s > 0 for rank in report.ranks)


def test_what_cannot_be_done_is_refused_and_changes_nothing(group: DeviceGroup) -> None:
    before = group.generate([[5, 6]], 4)
    with pytest.raises(RequestError, match="token 256 of sequence 0 is out of range: 0 to 255"):
        group.step({0: [256]})
    with pytest.raises(RequestError, match="one token or more"):
        group.step({0: []})
    with pytest.raises(RequestError, match="2048 at most"):
        group.step({0: [1] * 2049})
    with pytest.raises(CapacityError, match="needs 65 KV pages and a rank has 64"):
        group.step({0: [1] * 1025})
    assert group.generate([[5, 6]], 4) == before


@pytest.mark.skipif(cached_path() is None, reason="the default model is not fetched")
def test_the_default_model_on_two_ranks_equals_one_process() -> None:
    path = str(cached_path())
    model = load_model(path, "fp32", device="cpu")
    prompt = model.tokenizer.encode("The capital of France is")
    with DeviceGroup(ModelSource(path=path), tensor_parallel(model.arch, 2)) as group:
        result = group.step({0: prompt}, every_row=True, want_logits=True)
        group.free([0])
        text = group.generate([prompt], NEW)[0]
        report = group.report()
    assert result.logits is not None
    difference = (result.logits - naive_logits(model.decoder, prompt)).abs().amax(-1)
    assert difference[1:].max() <= 1e-4
    # The first token's activations reach 22,500; there one process itself is 1e-4 off float64.
    assert difference[0] <= 2e-4
    assert text == naive_greedy(model.decoder, prompt, NEW)[0]
    assert report.kv_balance == pytest.approx(4 / 3)  # 3 KV heads: 2 and 1
