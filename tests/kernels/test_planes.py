"""Byte and bit planes in torch, and what is refused; the Triton twin: `test_triton`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kvkernels import planes


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_what_was_split_or_packed_comes_back(rows: int, size: int, bits: int, seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (rows, 8 * size), dtype=torch.uint8, generator=make)
    for item in (2, 4):
        assert torch.equal(planes.join_planes(planes.split_planes(data, item), item), data)
    codes = data >> (8 - bits)
    packed = planes.pack_bits(codes, bits)
    assert packed.shape == (rows, size * bits)
    assert torch.equal(planes.unpack_bits(packed, bits), codes)


def test_the_layout_is_what_it_says() -> None:
    rows = torch.tensor([[10, 20, 11, 21, 12, 22]], dtype=torch.uint8)
    assert planes.split_planes(rows, 2).tolist() == [[10, 11, 12, 20, 21, 22]]
    codes = torch.tensor([[1, 2, 3, 0, 0, 0, 0, 2]], dtype=torch.uint8)
    assert planes.pack_bits(codes, 2).tolist() == [[0b00000101, 0b10000110]]


@pytest.mark.parametrize("call, sentence", [
    (lambda: planes.split_planes(torch.zeros(1, 6, dtype=torch.uint8), 3), "item = 3 bytes is not"),
    (lambda: planes.split_planes(torch.zeros(1, 6, dtype=torch.uint8), 4), "give .n, a multi"),
    (lambda: planes.join_planes(torch.zeros(6, dtype=torch.uint8), 2), "are no uint8 numbers of 2"),
    (lambda: planes.pack_bits(torch.zeros(1, 8, dtype=torch.uint8), 9), "bits = 9 is out of range"),
    (lambda: planes.pack_bits(torch.zeros(1, 7, dtype=torch.uint8), 3), "do not fill bytes: give"),
    (lambda: planes.unpack_bits(torch.zeros(1, 7, dtype=torch.uint8), 3), "are no 3 planes: give"),
])  # fmt: skip
def test_what_cannot_be_is_named(call, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
