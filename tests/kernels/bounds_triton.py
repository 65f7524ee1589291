"""The kernels of bounds under the interpreter, and what an offline compile must know of them."""

from collections.abc import Iterator

import triton
import triton.language as tl
from kvkernels import triton_bounds
from kvkernels.layout import PageSpec
from kvkernels.triton_formats import page_of, plane_of

SELECTED_PAGES = 2048  # of a text of 32k tokens


def bounds_kernels() -> Iterator[tuple]:
    """Name, kernel, constants and pointer types of each."""
    for fmt in ("bf16", "int4_rotated"):
        spec = PageSpec(30, 3, 64, 16, fmt, "bf16")
        constants = {"K": plane_of(spec, "k"), "PAGE": page_of(spec), "BLOCK_S": 16, "ROPE": False}
        types = {"k_arena": "*bf16" if fmt == "bf16" else "*u8", "offsets": "*i64", "rows": "*i64",
                 "pos": "*i64", "bounds": "*bf16"}  # fmt: skip
        yield f"bounds {fmt}", triton_bounds.bounds_kernel, constants, types
    constants = {"H": 3, "G": 3, "D": 64, "BLOCK_G": 16, "BLOCK_P": triton_bounds.SCORE_BLOCK,
                 "DOT": tl.bfloat16}  # fmt: skip
    types = {"q": "*bf16", "bounds": "*bf16", "rows": "*i64", "scores": "*fp32", "pages": "i32"}
    yield "score pages", triton_bounds.score_kernel, constants, types
    types = {"scores": "*fp32", "last": "*i64", "counts": "*i64", "chosen": "*i64", "pages": "i32"}
    yield "select pages", triton_bounds.select_kernel, {"BLOCK_P": SELECTED_PAGES}, types


def bounds_agree() -> dict[str, dict[str, float] | bool]:
    """Margins of the bounds of some formats, which are negative where one does not hold."""
    import torch

    from tests.kernels.bounds_cases import by_rule, check_bounds, selections

    assert triton.knobs.runtime.interpret
    found: dict[str, dict[str, float] | bool] = {
        fmt: check_bounds(triton_bounds, PageSpec(2, 2, 64, 16, fmt, "bf16"))
        for fmt in ("bf16", "int8", "int4_rotated", "kivi2")
    }
    spec = PageSpec(2, 1, 64, 16, "fp32", "bf16")
    found["rotated at read"] = check_bounds(triton_bounds, spec, rope=True)
    cases = [selections(seed) for seed in range(12)]
    found["selection"] = all(
        torch.equal(triton_bounds.select_pages(*case), by_rule(*case)) for case in cases
    )
    return found
