"""The Hadamard rotation on the GPU, in the order of additions of `formats.rotation`."""

import triton
import triton.language as tl


@triton.jit
def butterfly(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr):
    """One stage of a Hadamard transform: sums and differences of numbers STEP apart."""
    pairs = tl.permute(tl.reshape(x, [ROWS, WIDTH // (2 * STEP), 2, STEP]), [0, 1, 3, 2])
    one, two = tl.split(pairs)
    pairs = tl.permute(tl.join(one + two, one - two), [0, 1, 3, 2])
    return tl.reshape(pairs, [ROWS, WIDTH])


@triton.jit
def rotate_pair(first, second, PAGE: tl.constexpr):
    """Normalised Hadamard rotation of rows, in the order of `rotation.hadamard`."""
    for stage in tl.static_range(PAGE.log_half):
        first = butterfly(first, first.shape[0], PAGE.half, 2**stage)
        second = butterfly(second, second.shape[0], PAGE.half, 2**stage)
    factor = (2 * PAGE.half) ** -0.5
    return (first + second) * factor, (first - second) * factor
