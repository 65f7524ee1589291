"""The disk tier by each transport: the contract where it is installed, one sentence where not."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.spatial.conftest import Harness
from tests.spatial.media import CANARY, PAGE, numbered, page_of, put_of, read, reasons
from tests.spatial.medium_contract import CAP, OneClientContract, Open, closing
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.errors import TierError
from workbench.spatial.hierarchy.aligned import ALIGN, aligned_empty
from workbench.spatial.hierarchy.direct_io import DirectIo, DiskWays, FileIo, Piece
from workbench.spatial.hierarchy.disk_file import DiskFile
from workbench.spatial.hierarchy.disk_transports import KvikioIo, NixlIo, SwitchedIo
from workbench.spatial.hierarchy.medium import Get, MediumFault
from workbench.spatial.hierarchy.nixl_agent import PACKAGES


def installed(*modules: str) -> bool:
    return any(importlib.util.find_spec(name) is not None for name in modules)


def moves(io: type[FileIo]) -> bool:
    """Whether a transport can be used on this machine: kvikio needs NVIDIA's driver too."""
    with open("/proc/self/exe", "rb") as file:
        try:
            io(file.fileno()).close()  # type: ignore[call-arg]
        except MediumFault:
            return False
    return True


HAS_NIXL, HAS_KVIKIO = installed(*PACKAGES), installed("kvikio")
OPTIONAL = [
    pytest.param("nixl", id="nixl", marks=[
        pytest.mark.long, pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")]),
    pytest.param("kvikio", id="kvikio", marks=[
        pytest.mark.long, pytest.mark.skipif(not (HAS_KVIKIO and moves(KvikioIo)),
                                             reason="kvikio cannot move bytes here")]),
]  # fmt: skip
ALL = [pytest.param("direct", id="direct"), *OPTIONAL]
needs_nixl = [
    pytest.mark.long, pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed"),
]  # fmt: skip


@pytest.mark.parametrize("transport", ALL)
class TestContract(OneClientContract):
    @pytest.fixture
    def open_medium(self, tmp_path: Path, transport: str) -> Iterator[Open]:
        ways = DiskWays(transport=transport)
        yield from closing(lambda: DiskFile(str(tmp_path), CAP, ways=ways))


@pytest.mark.parametrize("transport", ALL)
@pytest.mark.parametrize("num_bytes", [1, 4095, 4096, 4097, 12_345, (3 << 20) + 5])
def test_pages_of_any_size_and_ranges(tmp_path: Path, transport: str, num_bytes: int) -> None:
    disk = DiskFile(str(tmp_path), 32 << 20, ways=DiskWays(transport=transport))
    puts = [put_of(bytes([n]), page_of(n, num_bytes), 1) for n in range(3)]
    assert reasons(disk.put(puts)) == [""] * 3
    for put in puts:
        assert read(disk, put) == ""
        for at in {0, num_bytes // 2, num_bytes - 1}:
            assert read(disk, put, at, min(5000, num_bytes - at)) == ""
    disk.check()
    disk.close(keep=False)


@pytest.mark.parametrize("transport", ALL)
def test_a_file_cut_by_somebody_is_a_counted_miss(tmp_path: Path, transport: str) -> None:
    disk = DiskFile(str(tmp_path), CAP, ways=DiskWays(transport=transport))
    puts = [numbered(number) for number in range(8)]
    assert reasons(disk.put(puts)) == [""] * 8
    os.truncate(disk.place, max(start + count for start, count in disk.runs_of(
        puts[3].record.key)) * ALIGN)  # fmt: skip
    out = np.full((8, PAGE), CANARY, np.uint8)
    done = disk.get([Get(put.record, 0, row) for put, row in zip(puts, out, strict=True)])
    assert reasons(done) == [""] * 4 + ["truncated"] * 4
    assert all((row == put.payload).all() for put, row in zip(puts[:4], out[:4], strict=True))
    disk.close(keep=False)


@pytest.mark.parametrize("transport", ALL)
def test_a_batch_with_a_bad_piece_moves_the_others(tmp_path: Path, transport: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8 * ALIGN))
    file = os.open(path, os.O_RDWR | os.O_DIRECT)
    io = {"direct": DirectIo, "nixl": NixlIo, "kvikio": KvikioIo}[transport](file)
    memory = aligned_empty(4 * ALIGN)
    memory[:] = 7
    view = memoryview(memory)  # type: ignore[arg-type]
    pieces = [Piece(at * ALIGN, view[row * ALIGN : (row + 1) * ALIGN], row)
              for row, at in enumerate((0, 3, 7, 9))]  # fmt: skip
    assert io.run(pieces, write=False) == {3: "truncated"}
    assert not memory[: 3 * ALIGN].any()
    memory[:] = 9
    assert io.run(pieces[:3], write=True) == {}
    assert path.read_bytes()[3 * ALIGN : 4 * ALIGN] == bytes([9]) * ALIGN
    assert (io.counts.num_reads, io.counts.num_writes) == (4, 3)
    io.close()
    os.close(file)


@pytest.mark.parametrize("transport", OPTIONAL)
def test_a_transport_chosen_live_reads_what_the_other_wrote(tmp_path: Path, transport: str) -> None:
    t = Harness(0, 8, RealClock(), disk_path=str(tmp_path))
    for number in range(6):
        t.store(t.key(number))
        t.settle()
    names = {tier.name: tier.way for tier in t.h.stats().tiers}
    assert names["G3"].startswith("io_uring")
    for chosen in (transport, "direct", transport):
        t.h.configure(TierSettings(**vars(t.settings) | {"disk_transport": chosen}))
        assert t.load([t.key(0), t.key(1)]) == ["G3", "G3"]
        way = {tier.name: tier.way for tier in t.h.stats().tiers}["G3"]
        assert way.startswith("io_uring") == (chosen == "direct")
    t.h.check_integrity(strict=True)
    t.h.close()


@pytest.mark.skipif(HAS_NIXL, reason="NIXL is installed")
def test_nixl_says_what_is_missing_and_nothing_changes(tmp_path: Path) -> None:
    t = Harness(1, 4, RealClock(), disk_path=str(tmp_path))
    for number in range(3):
        t.store(t.key(number))
        t.settle()
    why = r"the disk tier cannot be opened: NIXL is not installed: run pip install 'kv-workbench\["
    with pytest.raises(TierError, match=why):
        t.h.configure(TierSettings(**vars(t.settings) | {"disk_transport": "nixl"}))
    assert t.load([t.key(0)]) == ["G3"]
    t.h.close()
    with pytest.raises(TierError, match=why):
        Harness(1, 4, RealClock(), disk_transport="nixl")


@pytest.mark.skipif(HAS_KVIKIO, reason="kvikio is installed")
def test_kvikio_says_what_is_missing() -> None:
    why = r"the disk tier cannot be opened: kvikio is not installed: run pip install 'kv-workbench"
    with pytest.raises(TierError, match=why):
        Harness(1, 4, RealClock(), disk_transport="kvikio")


@pytest.mark.long
@pytest.mark.skipif(not HAS_KVIKIO or moves(KvikioIo), reason="no kvikio without a driver here")
def test_kvikio_without_a_driver_says_so() -> None:
    with pytest.raises(TierError, match=r"kvikio cannot move bytes on this machine \(libcuda"):
        Harness(1, 4, RealClock(), disk_transport="kvikio")


def test_switching_keeps_the_counts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * ALIGN))
    file = os.open(path, os.O_RDWR | os.O_DIRECT)
    io = SwitchedIo(DirectIo(file))
    memory = aligned_empty(ALIGN)
    piece = Piece(0, memoryview(memory), 0)  # type: ignore[arg-type]
    assert io.run([piece], write=False) == {} and io.counts.num_reads == 1
    io.switch(DirectIo(file, DiskWays(ring=False)))
    assert io.run([piece], write=False) == {} and io.counts.num_reads == 2 and io.way == "preadv"
    io.close()
    os.close(file)


@pytest.mark.parametrize("quiet", [pytest.param(True, marks=needs_nixl)])
def test_nixl_leaves_standard_output_alone(quiet: bool) -> None:
    """`workbench bench --json` prints one object there."""
    script = (
        "from workbench.spatial.hierarchy.disk_file import DiskFile\n"
        "from workbench.spatial.hierarchy.direct_io import DiskWays\n"
        "disk = DiskFile('', 1 << 22, ways=DiskWays(transport='nixl'))\n"
        "print('{\"way\": \"' + disk.way + '\"}')\ndisk.close(False)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert json.loads(done.stdout)["way"].startswith("NIXL POSIX")
