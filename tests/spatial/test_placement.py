"""Placements, the experts' arithmetic, a rank's cache and the formulas: no process is started."""

import subprocess
import sys

import pytest
import torch
from kvkernels.layout import PageSpec
from torch.nn import functional

from workbench.errors import CapacityError
from workbench.model.arch import ModelArch
from workbench.model.naive import causal_attend, naive_logits
from workbench.model.random_model import random_decoder
from workbench.spatial.devices.formulas import expected_bytes, wire_bytes
from workbench.spatial.devices.group import GroupOptions
from workbench.spatial.devices.moe import expert_tensors, route
from workbench.spatial.devices.moe_arch import MoeArch
from workbench.spatial.devices.placement import (
    Placement,
    experts,
    max_over_mean,
    pipeline,
    shares,
    tensor_parallel,
)
from workbench.spatial.devices.rank_cache import RankCache
from workbench.spatial.devices.report import overlap_of
from workbench.spatial.devices.sources import ModelSource, one_process

ARCH = ModelArch("random", 4, 96, 6, 3, 16, 128, 256)


def test_three_heads_on_two_ranks_are_two_and_one() -> None:
    placement = tensor_parallel(ARCH, 2)
    assert placement.kv_heads == ((0, 1), (2,))
    assert placement.layers == ((0, 1, 2, 3),) * 2
    assert placement.imbalance == pytest.approx(4 / 3)
    assert tensor_parallel(ARCH, 3).imbalance == 1.0


def test_layers_and_experts_are_spread_in_runs() -> None:
    assert pipeline(ARCH, 3).layers == ((0, 1), (2,), (3,))
    placement = experts(MoeArch(ARCH, 5, 2), 2)
    assert placement.experts == ((0, 1, 2), (3, 4))
    assert [len(share) for share in shares(10, 4)] == [3, 3, 2, 2]


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda n: tensor_parallel(ARCH, n), "1 to 3"),
        (lambda n: pipeline(ARCH, n), "1 to 4"),
        (lambda n: experts(MoeArch(ARCH, 4), n), "1 to 4"),
    ],
)
def test_more_ranks_than_parts_are_refused(make, allowed) -> None:  # type: ignore[no-untyped-def]
    for number in (0, -1, 5):
        with pytest.raises(ValueError, match=rf"num_ranks = {number} is out of range: {allowed}"):
            make(number)


@pytest.mark.parametrize(
    ("kind", "heads", "layers", "message"),
    [
        ("rows", ((0,),), ((0,),), "kind = 'rows'"),
        ("tensor", ((0,), (2,)), ((0,), (0,)), "follow one another"),
        ("tensor", ((0, 2), (1,)), ((0,), (0,)), "kv_heads of rank 0"),
        ("tensor", ((0,), ()), ((0,), (0,)), "kv_heads of rank 1"),
        ("tensor", ((0,), (1,)), ((0,), (1,)), "every rank must hold the same"),
        ("tensor", ((0,), (1,)), ((0,),), "layers has 1 parts"),
        ("experts", ((0,), (0,)), ((0,), (0,)), "experts has 0 parts"),
    ],
)
def test_a_placement_with_a_hole_is_refused(kind, heads, layers, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        Placement(kind, heads, layers)


def test_a_placement_of_another_model_is_refused() -> None:
    other = ModelArch("other", 2, 96, 6, 3, 16, 128, 256)
    with pytest.raises(ValueError, match="layers = .* 0 to 3 must all lie on a rank"):
        tensor_parallel(other, 2).check(ARCH)


@pytest.mark.parametrize("top_k", [0, 9])
def test_experts_out_of_range_are_refused(top_k: int) -> None:
    with pytest.raises(ValueError, match=rf"top_k = {top_k} is out of range: 1 to 8"):
        ModelSource(arch=ARCH, num_experts=8, top_k=top_k)


def test_a_source_is_a_file_or_a_seed() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        ModelSource()
    with pytest.raises(ValueError, match="num_experts needs random weights"):
        ModelSource(path="model.gguf", num_experts=4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("kv_tokens", 0), ("micro_batches", 0), ("step_s", 0), ("delays_s", (-1.0,)),
     ("backend", "mpi")],
)  # fmt: skip
def test_options_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        GroupOptions(**{field: value})  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_nccl_without_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="2 ranks need a GPU each and there are 0"):
        GroupOptions(backend="nccl").chosen_backend(2)
    assert GroupOptions().chosen_backend(2) == "gloo"


def test_the_router_gives_k_weights_that_sum_to_one() -> None:
    h, router = torch.randn(7, 16), torch.randn(6, 16)
    weights, chosen = route(h, router, 3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(7))
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    exact = (h @ router.T).softmax(-1)
    torch.testing.assert_close(weights, (w := exact.gather(1, chosen)) / w.sum(-1, keepdim=True))


def test_a_moe_layer_equals_every_token_through_its_experts_one_by_one() -> None:
    arch = ModelArch("random", 1, 32, 4, 2, 8, 16, 64, qk_norm=True)
    source = ModelSource(arch=arch, num_experts=5, top_k=2)
    block = one_process(source)._weights.layers[0].down
    router, gate_up, down = expert_tensors(source.moe, 0, source.seed)
    h = torch.randn(9, 32)
    expected = []
    for row in h:
        probabilities = (router @ row).softmax(-1)
        best = probabilities.topk(2)
        total = torch.zeros(32)
        for p, e in zip(best.values / best.values.sum(), best.indices, strict=True):
            gate, up = (gate_up[e] @ row).chunk(2)
            total += p * (down[e] @ (functional.silu(gate) * up))
        expected.append(total)
    torch.testing.assert_close(block(h), torch.stack(expected))


def test_a_rank_draws_only_its_experts_and_they_are_the_same() -> None:
    moe = MoeArch(ARCH, 6)
    whole, part = expert_tensors(moe, 2, 1), expert_tensors(moe, 2, 1, (3, 4))
    assert torch.equal(part[1], whole[1][3:5]) and torch.equal(part[2], whole[2][3:5])
    assert torch.equal(part[0], whole[0])


def test_a_ranks_cache_reads_what_it_wrote_over_several_pages() -> None:
    decoder = random_decoder(num_layers=2, num_kv_heads=2)
    cache = RankCache(PageSpec(2, 2, 16, 4, "fp32", "fp32"), num_pages=8)
    tokens = torch.randint(0, 128, (11,))
    logits, at = [], 0
    for count in (5, 1, 1, 4):
        cache.extend(0, count)
        new = tokens[at : at + count]
        positions = torch.arange(at, at + count)
        attend = cache.attention([0], [count])
        logits.append(decoder.forward(new, positions, attend, torch.arange(count)))
        at += count
    expected = naive_logits(decoder, tokens.tolist())
    torch.testing.assert_close(torch.cat(logits), expected, atol=1e-4, rtol=1e-5)
    assert cache.used_bytes == 3 * cache.spec.page_bytes


def test_a_full_cache_refuses_and_stays_as_it_was() -> None:
    cache = RankCache(PageSpec(1, 1, 8, 4, "fp32", "fp32"), num_pages=3)
    cache.extend(0, 8)
    with pytest.raises(CapacityError, match="needs 2 more KV pages and 1 are free"):
        cache.extend(1, 5)
    used = cache.used_bytes
    cache.extend(1, 4)
    assert cache.used_bytes == used + cache.spec.page_bytes
    cache.free(0)
    cache.free(0)
    assert cache.used_bytes == cache.spec.page_bytes
    q = torch.randn(0, 1, 8)
    assert cache.attention([], [])(0, q, q, q).shape == (0, 8)


def test_attention_of_a_cache_is_causal() -> None:
    cache = RankCache(PageSpec(1, 2, 8, 4, "fp32", "fp32"), num_pages=4)
    q, k, v = torch.randn(6, 4, 8), torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    cache.extend(3, 6)
    out = cache.attention([3], [6])(0, q, k, v)
    torch.testing.assert_close(out, causal_attend(0, q, k, v))


def test_formulas() -> None:
    rows = [(0, 10, 1), (1, 4, 1)]
    hidden = ARCH.hidden_size * 4
    tensor = expected_bytes(ARCH, None, tensor_parallel(ARCH, 2), rows)
    assert tensor == {"all_reduce": 2 * (2 * 3 * 14 + 2 * 2) * hidden}
    assert expected_bytes(ARCH, None, pipeline(ARCH, 3), rows) == {"send": 2 * 14 * hidden}
    assert expected_bytes(ARCH, None, pipeline(ARCH, 1), rows) == {}
    moe = MoeArch(ARCH, 4, 2)
    spread = expected_bytes(ARCH, moe, experts(moe, 2), rows)
    assert spread["all_to_all"] == 2 * 2 * 0.5 * (3 * 14 + 2) * hidden
    assert spread["all_to_all_counts"] == 2 * 4 * 2 * 8
    assert wire_bytes("all_reduce", 300, 3) == 400 and wire_bytes("send", 300, 3) == 300


def test_balance_and_overlap() -> None:
    assert max_over_mean([2, 1]) == pytest.approx(4 / 3)
    assert max_over_mean([0, 0]) == 1.0
    assert overlap_of([[(0, 2)], [(1, 3)]]) == pytest.approx(1 / 3)
    assert overlap_of([[(0, 1)], [(1, 2)]]) == 0.0
    assert overlap_of([[], []]) == 0.0


def test_a_page_can_show_a_report_without_torch() -> None:
    code = "import sys, workbench.spatial.devices.report as _; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
