"""Attention mass per page of the Triton kernels under the interpreter; prints JSON.

Run with TRITON_INTERPRET=1: {case: largest absolute difference to float64}.
"""

import json

import torch
from kvkernels import triton_backend

from tests.kernels.cases import Case, build, expected, run

CASES = (
    Case("bf16", "bf16", ((17, 16, 31, 4),), (1, 1, 3, 4), heads=1, share=3),
    Case("int8", "int4", ((20, 1), (15, 32)), (2, 1), heads=2, share=1, options={"num_splits": 2}),
    Case("int4", "int8", ((33, 7),), (1, 5), heads=1, share=7, log=True),
)


def page_error(case: Case) -> float:
    """The largest difference of a page's mass, summed over the query heads of a KV head."""
    world = build(case)
    found = run(world, triton_backend, "page").mass
    mass = expected(world)[2].unflatten(1, (-1, case.share)).sum(2)
    by_page = mass.unflatten(-1, (-1, case.block)).sum(-1)
    assert found is not None and found.shape == by_page.shape
    return float((found.double() - by_page).abs().max())


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({str(case): page_error(case) for case in CASES}))
