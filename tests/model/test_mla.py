"""A latent cache: absorbed equals unabsorbed, pages equal one pass, and the bytes are its own."""

import pytest
import torch
from kvkernels.layout import PageSpec

from workbench.errors import CapacityError, ModelError
from workbench.lab import attention_shapes_bench
from workbench.model.attention_shapes import default_shapes
from workbench.model.latent_pages import LatentPages, LatentSequence
from workbench.model.mla import MlaDecoder, MlaShape


def pool(shape: MlaShape, num_pages: int = 12, size: int = 4) -> LatentPages:
    return LatentPages(shape.num_layers, shape.row, num_pages=num_pages, block_size=size)


def tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 128, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [
    MlaShape(), MlaShape(num_heads=9, nope_dim=32, rope_dim=16, value_dim=24, latent_dim=64),
    MlaShape(num_layers=3, latent_dim=8, rope_dim=2),
])  # fmt: skip
def test_absorbed_equals_unabsorbed(shape: MlaShape, seed: int) -> None:
    decoder, text = MlaDecoder(shape, seed), tokens(30, seed)
    both = [
        decoder.forward(text, LatentSequence(pool(shape)), absorbed=absorbed)
        for absorbed in (True, False)
    ]
    assert float((both[0] - both[1]).abs().max()) < 1e-5
    assert float(both[0].std()) > 0.1, "logits that differ from one another"


@pytest.mark.parametrize("cuts", [[30], [1] * 30, [4, 4, 22], [5, 1, 1, 16, 7]])
@pytest.mark.parametrize("absorbed", [True, False])
def test_paged_steps_equal_one_pass(cuts: list[int], absorbed: bool) -> None:
    shape = MlaShape()
    decoder, text, pages = MlaDecoder(shape), tokens(30), pool(shape, 20)
    whole = decoder.forward(text, LatentSequence(pool(shape, 1, 64)), absorbed=absorbed)
    mine, other = LatentSequence(pages), LatentSequence(pages)
    steps = []
    for part in text.split(cuts):  # two sequences take turns, so that their pages alternate
        decoder.forward(part.flip(0), other)
        steps.append(decoder.forward(part, mine, absorbed=absorbed))
    assert set(mine.table).isdisjoint(other.table)
    assert float((torch.cat(steps) - whole).abs().max()) < 1e-5
    other.free()
    mine.free()
    mine.free()
    assert pages.num_free == 20 and mine.num_tokens == 0


def test_a_full_pool_says_so_and_keeps_what_it_has() -> None:
    shape = MlaShape()
    decoder, pages = MlaDecoder(shape), pool(shape, 2)
    sequence = LatentSequence(pages)
    decoder.forward(tokens(6), sequence)
    sentence = "1 pages of latents are needed and 0 are free: end a sequence, or make a larger pool"
    with pytest.raises(CapacityError, match=sentence):
        decoder.forward(tokens(3), sequence)
    assert sequence.num_tokens == 6 and len(sequence.table) == 2
    decoder.forward(tokens(2), sequence)


@pytest.mark.parametrize("change, sentence", [
    ({"rope_dim": 3}, "rope_dim = 3 is not allowed: rotation needs an even number"),
    ({"latent_dim": 0}, "latent_dim = 0 is out of range: 1 to 128"),
    ({"latent_dim": 129}, "latent_dim = 129 is out of range"),
    ({"num_heads": 0}, "num_heads = 0 is not allowed: give 1 or more"),
])  # fmt: skip
def test_a_shape_that_cannot_be_is_refused(change: dict[str, int], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        MlaShape(**change)


def test_shapes_take_the_bytes_they_say() -> None:
    """Allocated storage, summed apart from the claim."""
    mha, gqa, mqa, mla = default_shapes()
    for shape in (mha, gqa, mqa):
        spec = PageSpec(1, shape.num_kv_heads, shape.head_dim, 16, "bf16", "bf16")
        pages = torch.empty(5, spec.page_bytes, dtype=torch.uint8)
        assert pages.untyped_storage().nbytes() / (5 * 16) == shape.bytes_per_token
    latents = LatentPages(1, mla.latent_dim + mla.rope_dim, num_pages=5, block_size=16,
                          dtype=torch.bfloat16)  # fmt: skip
    assert latents.bytes_per_token == mla.bytes_per_token
    assert [shape.bytes_per_token for shape in (mha, gqa, mqa, mla)] == [2304, 768, 256, 576]


def test_the_command_prints_bytes_of_real_pages() -> None:
    told: list[str] = []
    figures = {f.name: f.value for f in attention_shapes_bench.measure(told.append, quick=True)}
    assert [figures[f"bytes_per_token_{name}"] for name in ("mha", "gqa", "mqa", "mla")] == [
        2304, 768, 256, 576,
    ]  # fmt: skip
    assert figures["mla_absorbed_difference"] < 1e-5 and told
