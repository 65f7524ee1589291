"""Joined heads: one low-rank basis over the vectors of several KV heads (Palu's G-LRD)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from kvkernels.api import FormatState
from kvkernels.layout import PageSpec
from kvkernels.pages import decode_pages, encode_pages

from tests.engine.harness import Runner, build, model, tokens
from workbench.engine.calibrating import calibrate
from workbench.errors import SettingError
from workbench.structural.compression.calibration import (
    Calibration,
    joined_heads,
    load,
    mixing,
)
from workbench.structural.compression.ranks import choose_ranks, kept_share

DIM, HEADS, SLOTS = 16, 6, 8


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calibrate(model(), 256, tmp_path_factory.mktemp("cal") / "own.safetensors").path


@pytest.fixture(scope="module")
def known(file: Path) -> Calibration:
    return load(file, model().decoder)


def joined(rank: int = 0, **more: object) -> dict[str, object]:
    return {"cache.k_format": "lowrank", "cache.v_format": "lowrank", "cache.rank": rank,
            "cache.rank_heads": 2, **more}  # fmt: skip


def state_of(spec: PageSpec, seed: int = 0) -> tuple[FormatState, dict[str, torch.Tensor]]:
    """A state with a random mean and random orthonormal rows of each layer and group of heads."""
    generator = torch.Generator().manual_seed(seed)
    state, made = FormatState.from_spec(spec), {}
    groups = spec.num_kv_heads // spec.rank_heads
    width = spec.rank_heads * spec.head_dim
    for plane in ("k", "v"):
        noise = torch.randn(spec.num_layers, groups, width, width, generator=generator)
        rows = torch.linalg.qr(noise.double()).Q[..., : spec.k.rank_of(spec.head_dim), :]
        mean = torch.randn(spec.num_layers, groups, 1, width, generator=generator).double()
        made[plane] = torch.cat([mean, rows], -2)  # [L, groups, 1 + rank, width]
        parts = made[plane].unflatten(-1, (spec.rank_heads, -1)).movedim(-2, 2)
        setattr(state, f"{plane}_table", parts.flatten(1, 2).flatten(-2).float())
    return state, made


@pytest.mark.parametrize("name", ["lowrank", "lowrank_int4"])
@pytest.mark.parametrize("heads, rank", [(2, 8), (2, 24), (3, 12), (6, 48), (6, 0), (2, 32)])
def test_a_page_reads_as_the_float64_projection(name: str, heads: int, rank: int) -> None:
    spec = PageSpec(2, HEADS, DIM, SLOTS, name, name, rank=rank, rank_heads=heads)
    state, made = state_of(spec)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 2, HEADS, SLOTS, DIM, generator=generator)
    pages = torch.zeros(3, spec.page_bytes, dtype=torch.uint8)
    for plane in ("k", "v"):
        encode_pages(pages, spec, plane, state, x)
        got = decode_pages(pages, spec, plane, state).double()
        table = made[plane][:, :, None]  # [L, groups, 1, 1 + rank, width]
        mean, rows = table[..., 0, :], table[..., 1:, :]
        wide = x.double().unflatten(2, (-1, heads)).transpose(3, 4).flatten(4)  # [n, L, g, S, w]
        found = (wide - mean) @ rows[:, :, 0].mT
        if name == "lowrank_int4":
            parts = found.unflatten(-1, (heads, -1))  # each head's row has a scale
            low = parts.amin(-1, keepdim=True)
            step = (parts.amax(-1, keepdim=True) - low) / 15
            found = (torch.round((parts - low) / step) * step + low).flatten(-2)
        want = (
            (found @ rows[:, :, 0] + mean).unflatten(-1, (heads, -1)).transpose(3, 4).flatten(2, 3)
        )
        limit = 0.02 if name == "lowrank" else 0.2
        assert (got - want).abs().max() < limit, "a code may fall on the other side"
        assert (got - want).abs().mean() < limit / 10


def test_single_tokens_are_written_as_whole_pages_are() -> None:
    spec = PageSpec(1, HEADS, DIM, SLOTS, "lowrank", "lowrank_int4", rank=24, rank_heads=3)
    state, _ = state_of(spec)
    x = torch.randn(5, HEADS, DIM, generator=torch.Generator().manual_seed(2))
    for plane, fmt in (("k", spec.k), ("v", spec.v)):
        table = state.head_table(plane, 0, HEADS)
        single = fmt.encode(x, table)
        paged = fmt.encode(x.transpose(0, 1), state.page_scale(spec, plane)[0])
        assert torch.equal(single.data, paged.data.transpose(0, 1))
        if single.meta is not None:
            assert torch.equal(single.meta, paged.meta.transpose(1, 2))
        alone = torch.cat([fmt.encode(x[at : at + 1], table).data for at in range(5)])
        assert torch.equal(alone, single.data), "nor do neighbours matter"
        one = fmt.decode(single.data, single.meta, table)
        many = fmt.decode(paged.data, paged.meta, state.page_scale(spec, plane)[0])
        torch.testing.assert_close(one, many.transpose(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name, bits", [("lowrank", 16), ("lowrank_int4", 4)])
def test_bytes_are_those_of_the_rank(name: str, bits: int) -> None:
    """Rank numbers a token and group of heads; with 4 bits a scale and a minimum a head besides."""
    spec = PageSpec(2, HEADS, DIM, 64, name, name, rank=24, rank_heads=3)
    each = 24 * bits // 8 + (4 * 3 if bits == 4 else 0)
    assert spec.page_bytes == 2 * 2 * 64 * (HEADS // 3) * each
    alone = PageSpec(2, HEADS, DIM, 64, name, name, rank=8)
    assert alone.page_bytes == spec.page_bytes, "the same bytes a head"
    assert spec.label.endswith("/r24/h3")
    pages = torch.zeros(1, spec.page_bytes, dtype=torch.uint8)
    assert pages.untyped_storage().nbytes() == spec.page_bytes


def test_a_joint_basis_keeps_at_least_as_much_at_equal_bytes(known: Calibration) -> None:
    """A block-diagonal basis is one of the joint ones, and the best of these is taken."""
    for rank in (4, 8, 12):
        alone = kept_of(known, 1, rank)
        assert kept_of(known, 2, 2 * rank) >= alone - 1e-6
    chosen = choose_ranks(known, 16, 2)
    assert all(rank % 8 == 0 for rank in chosen.values()) and sum(chosen.values()) <= 32
    assert 0 < kept_share(known, chosen, 2) <= 1
    with pytest.raises(SettingError, match="a mean rank of 4 is out of range: 8 to 32"):
        choose_ranks(known, 4, 2)


def kept_of(known: Calibration, heads: int, rank: int) -> float:
    """Mean square kept of all layers and heads, of K and V, over the whole."""
    powers = [known.power(plane, heads).double() for plane in ("k", "v")]
    return float(sum(x[..., :rank].sum() for x in powers) / sum(x.sum() for x in powers))


def test_tables_are_the_columns_of_the_measured_basis(known: Calibration) -> None:
    for name in ("lowrank", "lowrank_int4"):
        spec = PageSpec(2, 2, 16, 16, name, name, rank=16, rank_heads=2)
        state = known.state(spec, (0, 1), (0, 1), "cpu")
        for plane in ("k", "v"):
            rows = known.tensors[f"{plane}.joint2"][:, 0, :16]  # [L, rank, 2 D]
            rows = mixing(16) @ rows if name == "lowrank_int4" else rows
            table = getattr(state, f"{plane}_table").unflatten(-1, (17, 16))
            for head in range(2):
                torch.testing.assert_close(
                    table[:, head, 0], known.tensors[f"{plane}.mean"][:, head]
                )
                torch.testing.assert_close(
                    table[:, head, 1:], rows[..., 16 * head : 16 * (head + 1)]
                )


def test_which_numbers_of_heads_have_a_basis() -> None:
    assert joined_heads(3, 64) == (3,) and joined_heads(8, 128) == (2, 4)
    assert joined_heads(1, 64) == () and joined_heads(6, 16) == (2, 3, 6)


def test_a_full_rank_loses_nothing(file: Path) -> None:
    want = Runner(build()).one(tokens(30), 12)
    changes = joined(32, **{"cache.calibration": str(file)})
    for grouping in ("model", "halves", "layer"):
        assert Runner(build(changes | {"cache.grouping": grouping})).one(tokens(30), 12) == want


def test_a_ragged_batch_is_each_alone_and_chunks_do_not_matter(file: Path) -> None:
    """Streaming append is one-shot: the same codes, so nearly the same numbers."""
    changes = joined(16, **{"cache.calibration": str(file), "cache.sink_tokens": 0})
    prompts = [tokens(20 + 9 * seed, seed) for seed in range(3)]
    rows = {}
    for chunk in (64, 4):
        for number, prompt in enumerate(prompts):
            runner = Runner(build(changes | {"scheduling.chunk_tokens": chunk,
                                             "scheduling.token_budget": 96}))  # fmt: skip
            rows[chunk, number] = first_rows(runner, [prompt])[0]
    together = first_rows(Runner(build(changes | {"scheduling.token_budget": 96})), prompts)
    for number in range(3):
        for other in (rows[4, number], together[number]):
            assert (rows[64, number] == other).mean() > 0.97, "last bits of later layers may differ"


def first_rows(runner: Runner, prompts: list[list[int]]) -> list[np.ndarray]:
    """Bytes of the full pages of each prompt, in layer 0, once its first token is there."""
    ids = [runner.add(prompt, 30) for prompt in prompts]
    found = []
    stack = runner.engine.stack
    for request_id, prompt in zip(ids, prompts, strict=True):
        runner.until(lambda i=request_id: runner.outputs[i])
        blocks = stack.manager.requests[request_id]
        pages = [stack.store.read_row(stack.manager.parts(blocks.row_at(page))).copy()
                 for page in range(len(prompt) // 4)]  # fmt: skip
        found.append(np.concatenate(pages))
    runner.drain()
    return found


def test_keys_of_other_heads_are_no_keys_of_these(file: Path) -> None:
    """The tag of numerics names how many heads share a basis."""
    labels = set()
    for heads in (1, 2):
        changes = joined(16, **{"cache.calibration": str(file), "cache.rank_heads": heads})
        labels.add(build(changes).stack.manager.keys.format_label)
    assert len(labels) == 2 and any("/k16x2" in label for label in labels)


def test_it_changes_live_and_no_request_is_lost(file: Path) -> None:
    runner = Runner(build(joined(16, **{"cache.calibration": str(file)})))
    request = runner.add(tokens(30), 40)
    runner.step(4)
    for changes in (
        {"cache.rank_heads": 1}, {"cache.rank_heads": 2, "cache.rank": 24},
        {"cache.v_format": "lowrank_int4"}, {"cache.outlier_pages": 1}, {"cache.rank": 0},
    ):  # fmt: skip
        assert set(runner.engine.apply(changes).kinds.values()) == {"recode"}
        runner.step(5)
    runner.drain()
    assert len(runner.outputs[request]) == 40


@pytest.mark.parametrize("sparse", ["off", "quest", "landmarks"])
def test_values_in_dram_are_read_as_if_they_had_stayed(file: Path, sparse: str) -> None:
    found = []
    for place in ("hbm", "dram"):
        runner = Runner(build(joined(16, **{
            "cache.calibration": str(file), "cache.values": place, "tiers.dram_mib": 1.0,
            "retention.sparse": sparse, "retention.sparse_pages": 3,
            "retention.sparse_share": 0.0, "retention.sparse_dense_layers": 0,
            "cache.outlier_pages": 1})))  # fmt: skip
        found.append(runner.one(tokens(41), 12))
    assert found[0] == found[1]


REFUSED = [
    ({"cache.rank_heads": 2, "cache.grouping": "head"}, "cache.rank_heads = 2 joins the KV heads of"
     " a block, but cache.grouping = head gives each its own: choose layer, halves or model"),
    ({"cache.rank_heads": 3}, "cache.rank_heads = 3: 3 joined heads do not divide the 2 KV heads"),
    ({"cache.rank_heads": 2, "cache.rank": 12}, "cache.rank = 12: k_format = lowrank: rank 12 is no"
     " multiple of 8"),
    ({"cache.rank_heads": 2, "cache.rank": 40}, "rank 40 is above the width 32 of 2 heads"),
    ({"cache.rank_heads": 0}, "cache.rank_heads = 0 is out of range: 1 to 64"),
]  # fmt: skip


@pytest.mark.parametrize("changes, sentence", REFUSED)
def test_what_cannot_be_is_refused_by_name(
    file: Path, changes: dict[str, object], sentence: str
) -> None:
    engine = build({"cache.k_format": "lowrank", "cache.calibration": str(file)})
    before = engine.config
    with pytest.raises(SettingError) as error:
        engine.apply(changes)
    assert sentence in str(error.value) and engine.config is before
