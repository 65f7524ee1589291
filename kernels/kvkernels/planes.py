"""Bytes and bits of equal significance together: what comes before an entropy coder. Torch.

    byte planes   a0 a1 b0 b1 c0 c1        ->  a0 b0 c0 | a1 b1 c1
    bit planes    codes of w bits          ->  w planes; bit j of byte i is of code 8 * i + j

Rows are pages (or any equal pieces) and keep to themselves. `triton_planes` is the twin for cuda,
with the same signatures.
"""

import torch
from torch import Tensor

ITEMS = (2, 4)  # bytes of a number: bf16 and fp32


def split_planes(rows: Tensor, item: int) -> Tensor:
    """Byte-plane shuffle of uint8 rows [n, B]; `item` bytes (2 or 4) a number. ValueError."""
    check_rows(rows, item)
    return rows.unflatten(1, (-1, item)).transpose(1, 2).flatten(1)


def join_planes(rows: Tensor, item: int) -> Tensor:
    """Undo `split_planes`."""
    check_rows(rows, item)
    return rows.unflatten(1, (item, -1)).transpose(1, 2).flatten(1)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Bit planes uint8 [n, B * bits / 8] of uint8 codes [n, B] below 2**bits. ValueError."""
    check_codes(codes, bits)
    place = torch.arange(8, dtype=torch.uint8, device=codes.device)
    by_byte = codes.unflatten(1, (-1, 8))  # [n, B / 8, 8]
    planes = [((by_byte >> bit & 1) << place).sum(-1, dtype=torch.uint8) for bit in range(bits)]
    return torch.cat(planes, 1)


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Undo `pack_bits`: uint8 [n, B * bits / 8] to codes uint8 [n, B]."""
    check_packed(packed, bits)
    place = torch.arange(8, dtype=torch.uint8, device=packed.device)
    planes = packed.unflatten(1, (bits, -1))  # [n, bits, B / 8]
    codes = torch.zeros_like(planes[:, 0, :, None]).expand(-1, -1, 8).clone()
    for bit in range(bits):
        codes |= (planes[:, bit, :, None] >> place & 1) << bit
    return codes.flatten(1)


def check_rows(rows: Tensor, item: int) -> None:
    """Raise ValueError for rows that are not whole numbers of `item` bytes."""
    if item not in ITEMS:
        raise ValueError(f"item = {item} bytes is not allowed: choose 2 or 4")
    if rows.dim() != 2 or rows.dtype != torch.uint8 or rows.shape[1] % item:
        raise ValueError(
            f"rows {list(rows.shape)} of {rows.dtype} are no uint8 numbers of {item} bytes: "
            f"give [n, a multiple of {item}]"
        )


def check_codes(codes: Tensor, bits: int) -> None:
    """Raise ValueError for codes that do not fill whole bytes of a plane."""
    if not 1 <= bits <= 8:
        raise ValueError(f"bits = {bits} is out of range: 1 to 8")
    if codes.dim() != 2 or codes.dtype != torch.uint8 or codes.shape[1] % 8:
        raise ValueError(
            f"codes {list(codes.shape)} of {codes.dtype} do not fill bytes: give uint8 "
            "[n, a multiple of 8]"
        )


def check_packed(packed: Tensor, bits: int) -> None:
    """Raise ValueError for bytes that are not `bits` equal planes."""
    if not 1 <= bits <= 8:
        raise ValueError(f"bits = {bits} is out of range: 1 to 8")
    if packed.dim() != 2 or packed.dtype != torch.uint8 or packed.shape[1] % bits:
        raise ValueError(
            f"packed {list(packed.shape)} of {packed.dtype} are no {bits} planes: give uint8 "
            f"[n, a multiple of {bits}]"
        )
