"""The bytes by which a tier's file says what it holds.

    block 0   superblock: magic, version, where the blocks of the table lie, their sum
    anywhere  table: 256 entries a block, each (block of a header, generation, last use); 0 is none
    anywhere  a page: one header block, then its payload, in one run of blocks or several

              0       8       12     16          24             32          40
    header    | magic |version|slices| page bytes | payload bytes | generation |
              40        42          44    48           56
              | key len | codec len | runs | header sum | key | codec | checksums | runs | zeros |

Blocks are of 4096 bytes, numbers little endian, sums xxh3-64 with the sum's own field zero. A page
counts only if an entry names its header and the header names the entry's generation: an entry is
written when header and payload are, and cleared before their blocks are used again.
"""

import struct
from dataclasses import dataclass

import numpy as np
import xxhash

from workbench.spatial.hierarchy.aligned import ALIGN
from workbench.spatial.hierarchy.extents import Run
from workbench.spatial.hierarchy.medium import PageRecord, is_private

VERSION = 1
FILE_MAGIC = b"KVWBFILE"
PAGE_MAGIC = b"KVWBPAGE"
_SUPER = struct.Struct("<8sIIQ")  # magic, version, number of chunks, sum
_HEAD = struct.Struct("<8sIIQQQHHIQ")
MAX_CHUNKS = (ALIGN - _SUPER.size) // 8
ENTRY = np.dtype([("block", "<u4"), ("check", "<u4"), ("used", "<u8")])
ENTRIES_PER_BLOCK = ALIGN // ENTRY.itemsize


@dataclass(frozen=True, slots=True)
class Placed:
    """A page on the file: the first block of the first run holds its header."""

    record: PageRecord
    generation: int
    runs: tuple[Run, ...]

    @property
    def num_blocks(self) -> int:
        """Blocks it takes, its header's among them."""
        return sum(count for _, count in self.runs)


def page_blocks(record: PageRecord) -> int:
    """Blocks a page takes: header and payload."""
    return 1 + -(-record.payload_bytes // ALIGN)


def max_runs(record: PageRecord) -> int:
    """Runs that its header has room to name; not positive where the record itself does not fit."""
    fixed = _HEAD.size + len(record.key) + len(record.codec.encode()) + 8 * len(record.checksums)
    return (ALIGN - fixed) // 8


def encode_header(placed: Placed, block: memoryview) -> None:
    """Fill one block (4096 bytes); the record must leave room for its runs (`max_runs`)."""
    record, codec = placed.record, placed.record.codec.encode()
    numbers = [number for run in placed.runs for number in run]
    at = _HEAD.size + len(record.key) + len(codec)
    _HEAD.pack_into(
        block, 0, PAGE_MAGIC, VERSION, len(record.checksums), record.page_bytes,
        record.payload_bytes, placed.generation, len(record.key), len(codec), len(placed.runs), 0,
    )  # fmt: skip
    block[_HEAD.size : at] = record.key + codec
    struct.pack_into(f"<{len(record.checksums)}Q", block, at, *record.checksums)
    at += 8 * len(record.checksums)
    struct.pack_into(f"<{len(numbers)}I", block, at, *numbers)
    at += 4 * len(numbers)
    block[at:] = bytes(ALIGN - at)
    struct.pack_into("<Q", block, _HEAD.size - 8, xxhash.xxh3_64_intdigest(block))


def decode_header(block: bytes) -> Placed | None:
    """What a header says; None for anything that is not a whole header of this version."""
    (magic, version, slices, page_bytes, payload_bytes, generation, key_len, codec_len, num_runs,
     header_sum) = _HEAD.unpack_from(block)  # fmt: skip
    if magic != PAGE_MAGIC or version != VERSION:
        return None
    at = _HEAD.size
    if at + key_len + codec_len + 8 * (slices + num_runs) > ALIGN:
        return None
    blank = bytearray(block)
    blank[_HEAD.size - 8 : _HEAD.size] = bytes(8)
    if xxhash.xxh3_64_intdigest(blank) != header_sum:
        return None
    key = block[at : at + key_len]
    codec = block[at + key_len : at + key_len + codec_len].decode(errors="replace")
    at += key_len + codec_len
    checksums = struct.unpack_from(f"<{slices}Q", block, at)
    numbers = struct.unpack_from(f"<{2 * num_runs}I", block, at + 8 * slices)
    runs = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    return Placed(PageRecord(key, page_bytes, checksums, payload_bytes, codec), generation, runs)


def is_whole(placed: Placed, block: int, check: int, file_blocks: int) -> bool:
    """Whether a header belongs to the entry (`block`, `check`) and lies within the file.

    What belonged to a request of an earlier process means nothing to this one.
    """
    runs = placed.runs
    return (
        bool(runs)
        and runs[0][0] == block
        and placed.generation & 0xFFFFFFFF == check
        and placed.num_blocks == page_blocks(placed.record)
        and all(start > 0 < count and start + count <= file_blocks for start, count in runs)
        and not is_private(placed.record.key)
    )


def encode_superblock(chunks: list[Run]) -> bytes:
    """The file's first block; `chunks`: runs of blocks of the table, at most MAX_CHUNKS."""
    numbers = [number for chunk in chunks for number in chunk]
    tail = struct.pack(f"<{len(numbers)}I", *numbers)

    def build(block_sum: int) -> bytes:
        head = _SUPER.pack(FILE_MAGIC, VERSION, len(chunks), block_sum)
        return (head + tail).ljust(ALIGN, b"\0")

    return build(xxhash.xxh3_64_intdigest(build(0)))


def decode_superblock(block: bytes) -> list[Run] | None:
    """The table's runs; None for another version or a damaged block."""
    magic, version, num_chunks, block_sum = _SUPER.unpack_from(block)
    if magic != FILE_MAGIC or version != VERSION or num_chunks > MAX_CHUNKS:
        return None
    numbers = struct.unpack_from(f"<{2 * num_chunks}I", block, _SUPER.size)
    chunks = list(zip(numbers[::2], numbers[1::2], strict=True))
    blank = bytearray(block)
    blank[_SUPER.size - 8 : _SUPER.size] = bytes(8)
    return chunks if xxhash.xxh3_64_intdigest(blank) == block_sum else None


def is_ours(block: bytes) -> bool:
    """Whether a file's first block was written by us in any version, or never written."""
    return block[:8] == FILE_MAGIC or not any(block)
