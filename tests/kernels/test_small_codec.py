"""The numpy encoders equal the torch encoders bit for bit."""

import pytest
import torch
from kvkernels.layout import FORMATS
from kvkernels.small_codec import MAX_ELEMENTS

SCALES = (0.0, 1e-7, 1e-4, 1.0, 300.0, 1e6, 1e9)


@pytest.mark.parametrize("fmt", ["int8", "int4"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shift", [0.0, 2.5])
def test_equals_torch(fmt: str, scale: float, shift: float) -> None:
    generator = torch.Generator().manual_seed(7)
    x = (torch.randn(48, 64, generator=generator) + shift) * scale
    assert x.numel() <= MAX_ELEMENTS
    encode = FORMATS[fmt].key.encode
    small, large = encode(x), encode(x[:, None])  # three axes take the torch path
    assert small.meta is not None and large.meta is not None
    assert torch.equal(small.data, large.data[:, 0])
    assert torch.equal(small.meta, large.meta[..., 0])
