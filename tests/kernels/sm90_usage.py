"""Compile every Triton kernel for sm_90 without a GPU and print registers and spills as JSON.

Run as a script in a process of its own: the offline compile fails where TRITON_INTERPRET is set.
Arguments: `short` (one shape) or `all`.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import triton
import triton.language as tl
from bounds_triton import bounds_kernels
from kvkernels.layout import FORMATS, PageSpec
from kvkernels.triton_attend import dot_type, launch_shape, most_registers
from kvkernels.triton_attention import attention_kernel, combine_kernel, mass_kernel
from kvkernels.triton_backend import MOST_REGISTERS, MOVE_BLOCK, write_warps
from kvkernels.triton_formats import page_of, plane_of
from kvkernels.triton_pages import move_kernel, recode_kernel, write_kernel
from kvkernels.triton_plan import SMALL_TILE
from planes_triton import plane_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int8: "*i8", torch.uint8: "*u8",
         torch.float16: "*fp16"}  # fmt: skip
SHORT = ("bf16", "int4", "nvfp4", "kivi2", "lowrank")  # far apart; the long test takes all
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
POINTERS = {
    "lse": "*fp32", "meta": "*fp16", "pages": "*i64", "rows": "*i32", "tiles": "*i32",
    "log_count": "*fp32", "pos": "*i32", "cos": "*fp32", "sin": "*fp32", "k_scale": "*fp32",
    "v_scale": "*fp32", "mass": "*fp32", "parts": "*fp32", "lses": "*fp32", "picks": "*i32",
    "slots": "*i32", "saturated": "*i64", "src_at": "*i64", "dst_at": "*i64", "src_meta": "*fp16",
    "dst_meta": "*fp16", "src_pages": "*i64", "dst_pages": "*i64", "num_slots": "*i32",
    "src_scale": "*fp32", "dst_scale": "*fp32", "table": "*fp32", "src_table": "*fp32",
    "k_table": "*fp32", "v_table": "*fp32", "dst_table": "*fp32",
}  # fmt: skip


def usage(name: str, kernel: object, constants: dict, types: dict, **options: int) -> dict:
    """Compile one kernel and read its resource usage from the cubin."""
    names = kernel.arg_names  # type: ignore[attr-defined]
    known = POINTERS | types | {"scale": "fp32"}
    signature = {x: "constexpr" if x in constants else known.get(x, "i32") for x in names}
    used = {x: value for x, value in constants.items() if x in names}
    attrs = {
        (i,): [["tt.divisibility", 16]] for i, x in enumerate(names) if signature[x].startswith("*")
    }
    source = ASTSource(kernel, signature, used, attrs)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    assert found is not None, text
    registers, stack, shared, local = (int(x) for x in found.groups())
    return {
        "kernel": name,
        "registers": registers,
        "stack": stack,
        "local": local,
        "shared": max(shared, compiled.metadata.shared),
    }


def planes(spec: PageSpec) -> dict:
    """Layout constants of a page class."""
    return {"K": plane_of(spec, "k"), "V": plane_of(spec, "v"), "PAGE": page_of(spec)}


def attention(spec: PageSpec, query: torch.dtype, share: int, **flags: bool) -> Iterator[dict]:
    """Decode, prefill and mass kernels of one page class."""
    dot = dot_type(query, spec)
    constants = planes(spec) | {"G": share, "DOT": dot, "HAS_LOG": False, "ROPE": False}
    shape = launch_shape(dot, spec)
    constants |= flags | {"BLOCK_N": shape.block_slots}
    warps, rope = shape.num_warps, bool(constants["ROPE"])
    arenas = {"k_arena": TYPES[spec.k.dtype], "v_arena": TYPES[spec.v.dtype]}
    label = f"{spec.label} D={spec.head_dim} q={str(query)[6:]} {flags or ''}"
    for tile, out in ((SMALL_TILE, "*fp32"), (shape.large_tile, TYPES[query])):
        types = arenas | {"q": TYPES[query], "out": out}
        yield usage(f"attention {label} tile={tile}", attention_kernel,
                    constants | {"BLOCK_M": tile}, types, num_warps=warps,
                    num_stages=2, maxnreg=most_registers(tile, dot, spec, rope))  # fmt: skip
    types = arenas | {"q": TYPES[query]}
    yield usage(f"mass {label}", mass_kernel,
                constants | {"BLOCK_M": SMALL_TILE, "PARTS": share}, types,
                num_warps=warps, num_stages=1,
                maxnreg=most_registers(SMALL_TILE, dot, spec, rope))  # fmt: skip


def write(spec: PageSpec) -> dict:
    """The write kernel of one page class."""
    heads = triton.next_power_of_2(spec.num_kv_heads)
    types = {"k": "*bf16", "v": "*bf16"}
    types |= {"k_arena": TYPES[spec.k.dtype], "v_arena": TYPES[spec.v.dtype]}
    constants = planes(spec) | {"BLOCK_H": heads}
    return usage(f"write {spec.label}", write_kernel, constants, types,
                 num_warps=write_warps(spec), maxnreg=MOST_REGISTERS)  # fmt: skip


def recode(src: PageSpec, dst: PageSpec) -> dict:
    """The recode kernel between two page classes."""
    constants = {"BLOCK_S": triton.next_power_of_2(src.block_size)}
    for spec, side in ((src, "SRC"), (dst, "DST")):
        constants |= {side: plane_of(spec, "k"), f"{side}_PAGE": page_of(spec)}
    types = {"src": TYPES[src.k.dtype], "dst": TYPES[dst.k.dtype]}
    name = f"recode {src.label} to {dst.label}"
    return usage(name, recode_kernel, constants, types, num_warps=2, maxnreg=MOST_REGISTERS)


def joined(heads: int, dim: int, rank: int, *names: str) -> Iterator[dict]:
    """Kernels of low-rank pages whose heads share a basis."""
    plain = PageSpec(30, heads, dim, 16, "bf16", "bf16")
    for name in names:
        spec = PageSpec(30, heads, dim, 16, name, name, rank=rank, rank_heads=heads)
        yield write(spec)
        yield recode(plain, spec)
        yield recode(spec, plain)
        yield from attention(spec, torch.bfloat16, 3, ROPE=True)


def every(wide: bool) -> Iterator[dict]:
    """All kernels; `wide` adds the other and mixed formats, head size 128 and the options."""

    def spec(k: str, v: str | None = None, dim: int = 64) -> PageSpec:
        return PageSpec(30, 3, dim, 16, k, v or k)

    yield usage("move", move_kernel, {"BLOCK": MOVE_BLOCK}, {"src": "*i64", "dst": "*i64"})
    yield usage("combine", combine_kernel, {"D": 64, "BLOCK_S": 16}, {"out": "*bf16"}, num_warps=2)
    for kernel in (*plane_kernels(), *bounds_kernels()):
        yield usage(*kernel)
    for fmt in FORMATS if wide else SHORT:
        if not FORMATS[fmt].key.grouped:
            yield write(spec(fmt))
        yield recode(spec("bf16"), spec(fmt))
        yield from attention(spec(fmt), torch.bfloat16, 3)
    yield from joined(3, 64, 96, *(("lowrank", "lowrank_int4") if wide else ("lowrank_int4",)))
    if not wide:
        return
    yield from joined(8, 128, 512, "lowrank", "lowrank_int4")
    for k in FORMATS:
        if not FORMATS[k].key.grouped:
            yield write(PageSpec(30, 8, 128, 16, k, k))
        for v in ("bf16", "fp8_e4m3", "int8", "int4", "int2", "nvfp4"):
            yield recode(spec(k), spec(v))
            yield recode(spec(v), spec(k))
            if k != v:
                yield from attention(spec(k, v), torch.bfloat16, 3)
        yield from attention(spec(k, dim=128), torch.bfloat16, 7)
        yield from attention(spec(k), torch.float32, 3)
        yield from attention(spec(k, dim=128), torch.float32, 7)
        if not FORMATS[k].key.rotated:
            yield from attention(spec(k, dim=128), torch.bfloat16, 7, HAS_LOG=True, ROPE=True)


if __name__ == "__main__":
    assert tl is not None
    print(json.dumps(list(every(sys.argv[1:] == ["all"]))))
