"""Byte and bit planes on a GPU: the operations of `planes` with the same signatures, for cuda."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels.planes import check_codes, check_packed, check_rows

BLOCK = 1024  # numbers, or bytes of a plane, of one program
WORDS = {2: torch.int16, 4: torch.int32}


@triton.jit
def split_kernel(words, out, count, ITEM: tl.constexpr, BLOCK: tl.constexpr):
    """A row's numbers, words [n, count], to its byte planes, out uint8 [n, ITEM, count]."""
    row = tl.program_id(0).to(tl.int64) * count
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + row + at, mask=at < count, other=0)
    for plane in tl.static_range(ITEM):
        byte = ((word >> (8 * plane)) & 255).to(tl.uint8)
        tl.store(out + row * ITEM + plane * count + at, byte, mask=at < count)


@triton.jit
def join_kernel(planes, out, count, ITEM: tl.constexpr, BLOCK: tl.constexpr):
    """A row's byte planes, uint8 [n, ITEM, count], to its numbers, out words [n, count]."""
    row = tl.program_id(0).to(tl.int64) * count
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.zeros([BLOCK], tl.int32)
    for plane in tl.static_range(ITEM):
        byte = tl.load(planes + row * ITEM + plane * count + at, mask=at < count, other=0)
        word |= byte.to(tl.int32) << (8 * plane)
    tl.store(out + row + at, word.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def pack_kernel(codes, out, count, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Codes uint8 [n, 8 * count] to bit planes, out uint8 [n, BITS, count]."""
    row = tl.program_id(0).to(tl.int64) * count
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.arange(0, 8)
    where = row * 8 + at[:, None] * 8 + place[None, :]
    code = tl.load(codes + where, mask=(at < count)[:, None], other=0).to(tl.int32)
    for bit in tl.static_range(BITS):
        byte = tl.sum(((code >> bit) & 1) << place[None, :], 1)
        tl.store(out + row * BITS + bit * count + at, byte.to(tl.uint8), mask=at < count)


@triton.jit
def unpack_kernel(packed, out, count, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Bit planes uint8 [n, BITS, count] to codes, out uint8 [n, 8 * count]."""
    row = tl.program_id(0).to(tl.int64) * count
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.arange(0, 8)
    code = tl.zeros([BLOCK, 8], tl.int32)
    for bit in tl.static_range(BITS):
        byte = tl.load(packed + row * BITS + bit * count + at, mask=at < count, other=0)
        code |= ((byte.to(tl.int32)[:, None] >> place[None, :]) & 1) << bit
    where = row * 8 + at[:, None] * 8 + place[None, :]
    tl.store(out + where, code.to(tl.uint8), mask=(at < count)[:, None])


def split_planes(rows: Tensor, item: int) -> Tensor:
    """Byte-plane shuffle of uint8 rows [n, B]; see `planes`."""
    check_rows(rows, item)
    words, out = rows.contiguous().view(WORDS[item]), torch.empty_like(rows)
    split_kernel[_grid(words)](words, out, words.shape[1], ITEM=item, BLOCK=BLOCK)
    return out


def join_planes(rows: Tensor, item: int) -> Tensor:
    """Undo `split_planes`."""
    check_rows(rows, item)
    out = torch.empty_like(rows)
    words = out.view(WORDS[item])
    join_kernel[_grid(words)](rows.contiguous(), words, words.shape[1], ITEM=item, BLOCK=BLOCK)
    return out


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Bit planes uint8 [n, B * bits / 8] of uint8 codes [n, B]; see `planes`."""
    check_codes(codes, bits)
    count = codes.shape[1] // 8
    out = torch.empty((len(codes), count * bits), dtype=torch.uint8, device=codes.device)
    grid = (len(codes), triton.cdiv(count, BLOCK // 8))
    pack_kernel[grid](codes.contiguous(), out, count, BITS=bits, BLOCK=BLOCK // 8)
    return out


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Undo `pack_bits`."""
    check_packed(packed, bits)
    count = packed.shape[1] // bits
    out = torch.empty((len(packed), count * 8), dtype=torch.uint8, device=packed.device)
    grid = (len(packed), triton.cdiv(count, BLOCK // 8))
    unpack_kernel[grid](packed.contiguous(), out, count, BITS=bits, BLOCK=BLOCK // 8)
    return out


def _grid(words: Tensor) -> tuple[int, int]:
    return len(words), triton.cdiv(words.shape[1], BLOCK)
