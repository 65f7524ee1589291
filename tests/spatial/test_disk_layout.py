"""The disk's two layouts: I/Os a block and a layer, no byte lost, changed live, refused by name."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.spatial.media import numbered, page_of, private_key, put_of, read, reasons
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.errors import SettingError
from workbench.spatial.hierarchy import Hierarchy
from workbench.spatial.hierarchy.aligned import ALIGN, aligned_empty
from workbench.spatial.hierarchy.direct_io import DiskWays
from workbench.spatial.hierarchy.disk_file import DiskFile
from workbench.spatial.hierarchy.disk_layout import layer_blocks, place
from workbench.spatial.hierarchy.extents import Extents
from workbench.spatial.hierarchy.medium import Get, PageRecord, Put

LAYERS, LAYER = 8, 8192
PAGES = 6
MIB = 1 << 20


@pytest.fixture(params=["block_first", "layer_first"])
def disk(request: pytest.FixtureRequest) -> Iterator[DiskFile]:
    opened = DiskFile("", 4 * MIB, ways=DiskWays(layout=request.param))
    yield opened
    opened.check()
    opened.close(keep=False)


def aligned_puts(count: int = PAGES) -> list[Put]:
    """Pages in memory at a multiple of 4096, as the tiers have them."""
    puts = []
    for number in range(count):
        payload = aligned_empty(LAYERS * LAYER)
        payload[:] = page_of(number, LAYERS * LAYER)
        puts.append(put_of(b"P" + bytes([number]) * 32, payload, LAYERS))
    return puts


def layer_gets(puts: list[Put], layer: int) -> list[Get]:
    return [Get(put.record, layer * LAYER, aligned_empty(LAYER)) for put in puts]


def ios_of(disk: DiskFile, gets: list[Get]) -> int:
    before = disk.counts.num_reads
    assert reasons(disk.get(gets)) == [""] * len(gets)
    return disk.counts.num_reads - before


def test_a_block_alone_takes_one_io_or_one_a_layer(disk: DiskFile) -> None:
    puts = aligned_puts()
    assert reasons(disk.put(puts)) == [""] * PAGES
    alone = ios_of(disk, [Get(puts[2].record, 0, aligned_empty(LAYERS * LAYER))])
    assert alone == (1 if disk.layout == "block_first" else LAYERS)


def test_a_layer_of_many_blocks_takes_one_io_or_one_a_block(disk: DiskFile) -> None:
    puts = aligned_puts()
    disk.put(puts)
    gets = layer_gets(puts, 3)
    assert ios_of(disk, gets) == (PAGES if disk.layout == "block_first" else 1)
    for put, get in zip(puts, gets, strict=True):
        assert (get.out == put.payload[3 * LAYER : 4 * LAYER]).all()


def test_without_joining_each_piece_is_an_io(disk: DiskFile) -> None:
    puts = aligned_puts()
    disk.put(puts)
    disk.arrange(disk.layout, False)
    assert ios_of(disk, layer_gets(puts, 3)) == PAGES
    before = disk.counts.num_writes
    disk.remove([put.record.key for put in puts])
    cleared = disk.counts.num_writes - before
    disk.put(puts)
    written = disk.counts.num_writes - before - 2 * cleared  # the table is written again, too
    assert written >= 2 * PAGES, "header and payload apart"


def test_a_change_of_layout_leaves_what_lies_there_readable(disk: DiskFile) -> None:
    first = [numbered(number) for number in range(4)]
    disk.put(first)
    disk.arrange("layer_first" if disk.layout == "block_first" else "block_first", True)
    second = [numbered(number) for number in range(4, 8)]
    disk.put(second)
    for put in first + second:
        assert read(disk, put) == "" and read(disk, put, 1000, 9000) == ""


@pytest.mark.parametrize("layer_bytes", [1, 100, 4096, 5000, 12_288])
@pytest.mark.parametrize("num_layers", [1, 2, 7, 30])
def test_layers_of_any_size_add_up_to_the_page(layer_bytes: int, num_layers: int) -> None:
    size = layer_bytes * num_layers
    record = PageRecord(b"P", size, (0,) * num_layers, size)
    parts = layer_blocks(record)
    assert sum(parts) == 1 + -(-size // ALIGN) and min(parts) > 0
    free = Extents()
    free.add(1, sum(parts))
    runs = place(free, record, sum(parts) + 1, "layer_first")
    assert runs is not None and sum(count for _, count in runs) == sum(parts)
    assert free.free_blocks == 0


def test_no_room_takes_nothing_and_a_blob_has_no_layers() -> None:
    record = PageRecord(b"P", 80_000, (0,) * 8, 80_000)
    free = Extents()
    free.add(0, 10)
    assert place(free, record, 10, "layer_first") is None and free.free_blocks == 10
    blob = PageRecord(b"P", 80_000, (0,) * 8, 20_000, "planes+zstd")
    assert place(free, blob, 10, "layer_first") == [(0, 6)]


def test_layers_that_find_no_room_in_one_piece_lie_in_several() -> None:
    free = Extents()
    for block in range(0, 60, 2):
        free.add(block, 1)
    record = PageRecord(b"P", 80_000, (0,) * 8, 80_000)
    runs = place(free, record, 60, "layer_first")
    assert runs is not None and sum(count for _, count in runs) == 21
    free.check()


def test_the_file_is_full_to_the_same_byte_in_both_layouts(disk: DiskFile) -> None:
    record = aligned_puts(1)[0].record
    count = disk.usable_bytes // disk.charge_bytes(record)
    payload = page_of(1, LAYERS * LAYER)
    puts = [put_of(private_key("r", number), payload, LAYERS) for number in range(count)]
    assert reasons(disk.put(puts)) == [""] * count
    rng = np.random.default_rng(0)
    for _ in range(6):  # in any order of holes
        gone = rng.permutation(count)[: count // 3]
        disk.remove([puts[at].record.key for at in gone])
        assert reasons(disk.put([puts[at] for at in gone])) == [""] * len(gone)
    assert disk.file_bytes <= disk.capacity_bytes


def test_a_codec_and_layers_apart_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match="tiers.disk_layout = layer_first .* choose block_first"):
        TierSettings(disk_layout="layer_first", disk_codec="planes+zstd")


def test_settings_reach_the_disk_live(tmp_path: Path) -> None:
    page = page_of(5, LAYERS * LAYER)
    with Hierarchy(TierSettings(disk_mib=4.0), page.nbytes, RealClock(), lambda *_: None) as h:
        ios = []
        for number, layout in enumerate(("block_first", "layer_first")):
            h.configure(TierSettings(disk_mib=4.0, disk_layout=layout))
            key = bytes([number]) * 32
            assert h.store(key, page, LAYERS)
            h.wait_io()
            h.poll()
            before = h.stats().tiers[1].ios
            job = h.submit_load([key])
            h.wait_io()
            (result,) = h.poll()
            assert result.pages[0] is not None and (result.pages[0] == page).all()
            after = h.stats().tiers[1].ios
            assert before is not None and after is not None
            ios.append(after.since(before).num_reads)
            h.complete_load(job)
        assert ios == [1, LAYERS]
