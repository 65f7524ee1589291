"""The plane kernels without a GPU: numbers against NumPy, and what to compile for sm_90."""

from collections.abc import Iterator

import numpy as np
import torch
from kvkernels import planes, triton_planes

Compile = tuple[str, object, dict, dict]


def planes_agree() -> dict[str, bool]:
    """Whether both backends give NumPy's bytes, around a program's block."""
    rng = np.random.default_rng(0)
    verdict = {}
    for rows, size in ((2, 8), (1, 8 * 260)):
        data = rng.integers(0, 256, (rows, size), np.uint8)
        for item in (2, 4):
            split = data.reshape(rows, -1, item).transpose(0, 2, 1).reshape(rows, -1)
            for twin in (planes, triton_planes):
                given = torch.from_numpy(data)
                found = twin.split_planes(given, item)
                right = np.array_equal(found.numpy(), split)
                right = right and torch.equal(twin.join_planes(found, item), given)
                verdict[f"{twin.__name__} {item} bytes, {size}"] = right
        for bits in (1, 3, 5, 8):
            codes = data >> (8 - bits)
            both = [np.packbits(codes >> bit & 1, -1, "little") for bit in range(bits)]
            for twin in (planes, triton_planes):
                given = torch.from_numpy(codes)
                found = twin.pack_bits(given, bits)
                right = np.array_equal(found.numpy(), np.concatenate(both, 1))
                right = right and torch.equal(twin.unpack_bits(found, bits), given)
                verdict[f"{twin.__name__} {bits} bits, {size}"] = right
    return verdict


def plane_kernels() -> Iterator[Compile]:
    """(name, kernel, constants, types) of each kernel at one width."""
    numbers = {"ITEM": 2, "BLOCK": triton_planes.BLOCK}
    types = {"words": "*i16", "planes": "*u8", "count": "i32"}
    yield "split planes", triton_planes.split_kernel, numbers, types | {"out": "*u8"}
    yield "join planes", triton_planes.join_kernel, numbers, types | {"out": "*i16"}
    bits = {"BITS": 5, "BLOCK": triton_planes.BLOCK // 8}
    types = {"codes": "*u8", "packed": "*u8", "out": "*u8", "count": "i32"}
    yield "pack bits", triton_planes.pack_kernel, bits, types
    yield "unpack bits", triton_planes.unpack_kernel, bits, types
