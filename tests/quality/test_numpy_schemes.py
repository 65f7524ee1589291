"""The float64 schemes against what their descriptions promise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.quality import numpy_schemes as schemes


def vectors(seed: int, tokens: int = 64, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, (tokens, 2, 64))


@given(st.integers(0, 500), st.sampled_from([1e-6, 1e-3, 1.0, 50.0, 400.0]))
@settings(max_examples=40, deadline=None)
def test_e4m3_is_torchs(seed: int, scale: float):
    x = vectors(seed, 4, scale)
    narrow = torch.from_numpy(x).clamp(-448, 448).float()
    # float32 first would round twice; keep values that float32 holds exactly
    exact = narrow.double().numpy()
    assert (schemes.fp8_e4m3(exact) == narrow.to(torch.float8_e4m3fn).double().numpy()).all()


@pytest.mark.parametrize(
    ("encode", "levels"),
    [(schemes.int8, 254), (schemes.int4, 15)],
)
def test_uniform_errors_are_within_half_a_step(encode, levels: int):
    x = vectors(1)
    span = (2 * np.abs(x).max(-1) if levels == 254 else np.ptp(x, -1))[..., None]
    # fp16 scales and minima move the grid by up to a thousandth of the span
    assert (np.abs(encode(x) - x) <= span / levels * 0.5 + span * 1e-3).all()


def test_rotation_is_orthonormal_and_tames_outliers():
    matrix = schemes.hadamard(64)
    assert matrix @ matrix.T == pytest.approx(np.eye(64))
    assert (matrix == matrix.T).all()
    x = vectors(2)
    x[..., 5] *= 40  # an outlier channel, as keys have
    error = [np.square(f(x) - x).mean() for f in (schemes.int4, schemes.int4_rotated)]
    assert error[1] < error[0] / 2
    with pytest.raises(ValueError, match="a Hadamard rotation of 48 channels needs a power of two"):
        schemes.hadamard(48)


@pytest.mark.parametrize("bits", [2, 4])
def test_kivi_groups_keys_along_tokens(bits: int):
    x = vectors(3, 70)
    x[:, :, 7] *= 40  # one channel far out: costs the others nothing
    coded = schemes.kivi_k(x, bits)
    assert (coded[64:] == x[64:]).all()  # the unfinished run
    runs = x[:64].reshape(2, 32, 2, 64)
    span = np.ptp(runs, 1)[:, None]
    error = np.abs(coded[:64].reshape(runs.shape) - runs)
    assert (error <= span / (2**bits - 1) / 2 + span * 1e-3).all()
    per_token = np.abs(schemes.kivi_v(x, bits) - x)[:64]
    assert error[..., 8:32].max() < per_token[..., 8:32].max()


def test_kivi_groups_values_along_channels():
    x = vectors(4, 32)
    assert (schemes.kivi_v(x[:31], 2) == x[:31]).all()
    runs = x.reshape(32, 2, 2, 32)
    span = np.ptp(runs, -1)[..., None]
    error = np.abs(schemes.kivi_v(x, 2).reshape(runs.shape) - runs)
    assert (error <= span / 6 + span * 1e-3).all()


@pytest.mark.parametrize("name", list(schemes.SCHEMES))
def test_constant_and_zero_vectors_survive(name: str):
    scheme = schemes.SCHEMES[name]
    for x in (np.zeros((32, 2, 64)), np.full((32, 2, 64), 1.5)):
        for encode in (scheme.encode_k, scheme.encode_v):
            result = encode(x)
            assert np.isfinite(result).all()
            assert result == pytest.approx(x, abs=0.02)
