"""Triton under the interpreter against float64; prints JSON. Run with TRITON_INTERPRET=1.

Arguments: `short` or `all`.
"""

import itertools
import json
import sys
from collections.abc import Iterator

import torch
from kvkernels import reference, triton_backend
from kvkernels.api import FormatState, Scratch
from kvkernels.layout import FORMATS, PageSpec
from kvkernels.pages import decode_pages, encode_pages

from tests.kernels.bounds_triton import bounds_agree
from tests.kernels.cases import Case, build, errors, set_tables, write_difference
from tests.kernels.planes_triton import planes_agree

TWO = {"num_splits": 2}
HUBS = ("bf16", "fp8_e4m3_head", "int4", "int2", "nvfp4")  # what every format is paired with

SHORT = ("bf16", "fp8_e4m3_token", "int8", "int4", "int3", "nvfp4", "kivi2", "kvquant3", "lowrank")


def short_cases() -> Iterator[Case]:
    """One format of each family, each length remainder, group size and option at least once."""
    mixed = ((17, 16, 31, 4),)
    for fmt, share in zip(SHORT, itertools.cycle((3, 1, 7))):
        yield Case(
            fmt, fmt, mixed, (1, 1, 3, 4), heads=1, share=share, log=fmt == "int8", options=TWO
        )
    yield Case("int8", "int4", ((65, 33),), (1, 1), heads=2, share=3, dim=128, options=TWO)
    yield Case("kivi2", "int2", ((65, 33),), (1, 1), heads=1, share=3, dim=128, options=TWO)
    wide = ((65, 97),)
    yield Case("kivi2", "kivi2", wide, (1, 1), heads=1, share=3, block=64, group=64, options=TWO)
    yield Case("kivi4", "kivi3", wide, (1, 1), heads=1, share=3, block=32, group=16, options=TWO)
    yield Case("fp8_e4m3_head", "turbo4", ((33,), (20,)), (3,), heads=1, share=2, options=TWO)
    yield Case("fp8_e4m3", "bf16", ((20, 1), (15, 32)), (2, 1), heads=1, share=1, options=TWO)
    yield Case("int4", "fp32", ((40,),), (25,), heads=1, share=3, rope=True)
    yield Case("fp8_e4m3_head", "bf16", ((19,),), (3,), heads=2, share=1, rope=True)
    yield Case("kvquant3", "lowrank_int4", ((20, 1), (15, 32)), (2, 1), heads=2, share=1, rope=True)
    yield Case("bf16", "int8", ((19, 0, 9),), (3, 1, 2), heads=1, bf16=True, new_lens=(2, 0, 0),
               new_starts=(1, 0, 0))  # fmt: skip


def all_cases() -> Iterator[Case]:
    """The sweep: formats in pairs, remainders, group sizes, head sizes and options."""
    for k, v in itertools.product(FORMATS, HUBS):
        yield Case(k, v, ((17, 16, 31, 40),), (1, 1, 3, 25), heads=1, options=TWO)
    for fmt, share, dim in itertools.product(FORMATS, (1, 3, 7), (64, 128)):
        for length in (32, 33, 47):
            lens = ((length, 5), (16, length))
            yield Case(fmt, fmt, lens, (1, 4), 1, share, dim, log=True, options=TWO)
        yield Case(fmt, fmt, ((40, 31),), (20, 1), heads=1, share=share, dim=dim, rope=True)
        yield Case(fmt, fmt, ((40, 33),), (7, 1), heads=1, share=share, dim=dim, bf16=True)


def joined_cases() -> Iterator[Case]:
    """Heads that share a low-rank basis: two of two and of six, three, codes, and one plane."""
    both = ((20, 33),)
    yield Case("lowrank", "lowrank_int4", both, (2, 1), heads=2, share=1, rank=24, joined=2)
    yield Case("lowrank_int4", "bf16", both, (2, 1), heads=3, share=2, rank=36, joined=3,
               log=True)  # fmt: skip
    yield Case("lowrank", "lowrank", ((17,), (16,)), (1,), heads=6, share=1, rank=40, joined=2,
               rope=True)  # fmt: skip


def writes_agree() -> dict[str, float]:
    """How far both backends' writes lie apart where coordinates of several heads are added."""
    backends = (reference, triton_backend)
    return {str(case): write_difference(build(case), backends) for case in joined_cases()}


def pages_agree(pairs: list[tuple[str, str]], **shape: int) -> dict[str, bool]:
    """Moves give the torch reference's bytes, and recode its numbers but for a few codes."""
    verdict = {}
    heads = shape.pop("heads", 2)
    for src_fmt, dst_fmt in pairs:
        src, dst = (PageSpec(2, heads, 64, 16, fmt, fmt, **shape) for fmt in (src_fmt, dst_fmt))
        size = max(src.page_bytes, dst.page_bytes)
        arena = torch.randint(0, 100, (6 * size,), dtype=torch.uint8)
        state = FormatState.from_spec(src)
        state.k_scale += 0.5
        set_tables(state, src, 1)
        filled = torch.zeros(2, src.page_bytes, dtype=torch.uint8)
        for plane in ("k", "v"):
            encode_pages(filled, src, plane, state, torch.randn(2, 2, heads, 16, 64) * 200)
        offsets = torch.tensor([0, size])
        reference.scatter_pages(arena, src, offsets, filled)
        twins = [arena.clone(), arena.clone()]
        held = []
        for backend, twin in zip((reference, triton_backend), twins, strict=True):
            target = FormatState.from_spec(dst)
            set_tables(target, dst, 2)
            there = offsets + 2 * size
            backend.recode_pages(
                twin, src, offsets, state, dst, there, target, Scratch(),
                num_slots=torch.tensor([16, 0 if FORMATS[dst_fmt].key.grouped else 5]),
            )  # fmt: skip
            out = torch.empty(2, dst.page_bytes, dtype=torch.uint8)
            backend.copy_pages(twin, dst, there, offsets + 4 * size)
            backend.gather_pages(twin, dst, offsets + 4 * size, out)
            values = torch.stack([decode_pages(out, dst, plane, target) for plane in ("k", "v")])
            held.append((values, int(target.saturated)))
        (want, clamped), (got, clamped_too) = held
        # a code may fall on the other side of a boundary; the interpreter cuts fp32 to bf16 off
        close = bool((want - got).norm() <= 0.01 * want.norm()) and bool(want.isfinite().all())
        verdict[f"{src.label} to {dst.label}"] = close and clamped == clamped_too
    return verdict


def main(wide: bool) -> None:
    """Print one line of JSON."""
    torch.manual_seed(0)
    attention = {}
    for case in itertools.chain(joined_cases(), all_cases() if wide else short_cases()):
        attention[str(case)] = errors(build(case), triton_backend) | {"bf16": case.bf16}
    pairs = [(fmt, "int8") for fmt in FORMATS] + [("bf16", fmt) for fmt in FORMATS]
    if wide:
        pairs = [*itertools.product(FORMATS, HUBS), *itertools.product(HUBS, FORMATS)]
    report = {"attention": attention, "pages": pages_agree(pairs), "planes": planes_agree()}
    joined = [("bf16", "lowrank"), ("lowrank", "lowrank_int4"), ("lowrank_int4", "int8")]
    for heads, number, rank in ((2, 2, 24), (3, 3, 36)):
        report["pages"] |= pages_agree(joined, heads=heads, rank=rank, rank_heads=number)
    report["bounds"] = bounds_agree()
    report["writes"] = writes_agree()
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:] == ["all"])
