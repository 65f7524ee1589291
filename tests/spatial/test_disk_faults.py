"""Whatever happens to the files, a load returns the right bytes or a counted miss."""

import os
import shutil
import struct
import subprocess
import threading

import numpy as np
import pytest

from workbench.cache.keys import PrivateKey
from workbench.cache.tier import Lookup
from workbench.spatial.hierarchy.faults import FAULTS, inject
from workbench.spatial.hierarchy.medium import PageRecord, encode_key
from workbench.spatial.hierarchy.page_file import encode_header, header_bytes, write_file

EXPECTED = {
    "corrupt_dram": ("G2", {"corrupt"}),
    "corrupt_disk": ("G3", {"corrupt"}),
    "truncate_disk": ("G3", {"truncated"}),
    "delete_disk": ("G3", {"deleted"}),
    "unreadable_disk": ("G3", {"unreadable"}),
    "foreign_disk": ("G3", {"foreign"}),
}


def file_path(t, number):
    return t.disk.medium.file_path(encode_key(t.key(number)))


def on_disk(harness, count=1, disk_pages=8):
    t = harness(0, disk_pages)
    for number in range(count):
        t.store(t.key(number))
        t.settle()
    return t


@pytest.mark.parametrize("kind", sorted(EXPECTED))
@pytest.mark.parametrize("seed", range(3))
def test_each_fault_is_a_counted_miss(harness, kind, seed):
    t = harness(4, 0) if kind == "corrupt_dram" else harness(0, 8)
    t.store(t.key(0))
    t.settle()
    fault = inject(t.h, kind, np.random.default_rng(seed))
    assert fault is not None and fault.key == t.key(0)
    assert t.load([t.key(0)]) == [""]
    tier, reasons = EXPECTED[kind]
    assert len(t.faults()) == 1 and t.faults()[0][0] == tier and t.faults()[0][1] in reasons
    assert t.h.lookup(t.key(0)) is Lookup.MISS
    t.settle()
    assert t.h.stats().tiers[tier == "G3"].used_bytes == 0
    t.h.check_integrity(strict=True)
    assert t.store(t.key(0))  # the tier goes on
    t.settle()
    assert t.load([t.key(0)]) != [""]


def test_a_full_disk_drops_the_store_and_goes_on(harness):
    t = harness(0, 8)
    inject(t.h, "enospc", np.random.default_rng(0))
    t.store(t.key(0))
    t.settle()
    assert t.faults() == [("G3", "disk_full")]
    assert t.h.lookup(t.key(0)) is Lookup.MISS
    assert t.h.stats().tiers[1].num_dropped_stores == 1
    t.h.check_integrity(strict=True)  # no temporary file is left
    t.store(t.key(0))
    t.settle()
    assert t.load([t.key(0)]) == ["G3"]


def test_nothing_to_damage_and_unknown_kind(harness):
    t = harness(0, 0)
    assert all(inject(t.h, kind, np.random.default_rng(0)) is None for kind in FAULTS)
    with pytest.raises(ValueError, match="unknown fault 'fire': choose one of corrupt_dram"):
        inject(t.h, "fire", np.random.default_rng(0))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_real_enospc_on_a_small_file_system(harness, tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine forbids mounting")
    try:
        t = harness(0, 64, disk_path=str(tmp_path))
        for number in range(20):
            t.store(t.key(number))
            t.settle()
            t.h.check_integrity(strict=True)
        reasons = {reason for _, reason in t.faults()}
        assert reasons == {"disk_full"}
        hits = [n for n in range(20) if t.is_hit(t.key(n))]
        assert hits and t.load([t.key(n) for n in hits]) == ["G3"] * len(hits)
        t.h.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_folder_that_vanishes(harness, tmp_path):
    t = harness(0, 8, disk_path=str(tmp_path / "tier"))
    t.store(t.key(0))
    t.settle()
    shutil.rmtree(tmp_path / "tier")
    assert t.load([t.key(0)]) == [""]
    t.store(t.key(1))
    t.settle()
    assert t.h.lookup(t.key(1)) is Lookup.MISS
    assert {reason for _, reason in t.faults()} == {"deleted"}


def test_a_file_replaced_by_a_folder_or_a_pipe(harness):
    t = on_disk(harness, 2)
    for number, make in enumerate((os.mkdir, os.mkfifo)):
        path = file_path(t, number)
        os.unlink(path)
        make(path)
        assert t.load([t.key(number)]) == [""]
    t.settle()
    assert len(t.faults()) == 2
    t.h.check_integrity()
    t.h.close()
    assert not os.path.exists(t.h.stats().tiers[1].place)


def test_another_keys_valid_page_is_not_ours(harness):
    """A whole, consistent file of another key at our path: the session mix-up of the field."""
    t = on_disk(harness, 2)
    mine, other = file_path(t, 0), file_path(t, 1)
    shutil.copyfile(other, mine)
    assert t.load([t.key(0)]) == [""]
    assert t.faults() == [("G3", "corrupt")]


def test_recomputed_checksums_do_not_pass(harness):
    """A file rewritten with other bytes and fitting checksums differs from what was stored."""
    t = on_disk(harness)
    entry, path = t.disk.table.get(t.key(0)), file_path(t, 0)
    os.unlink(path)
    page = t.page(t.key(9))
    sums = tuple(range(len(entry.checksums)))
    write_file(path, PageRecord(encode_key(t.key(0)), page.nbytes, sums, page.nbytes), page)
    assert t.load([t.key(0)]) == [""]


def test_damage_between_submit_and_read(harness):
    """The file is deleted while its read waits behind a slow transfer."""
    t = on_disk(harness)
    gate = threading.Event()

    def slow():
        from workbench.spatial.hierarchy.io_thread import Outcome

        assert gate.wait(10)
        return Outcome()

    t.disk.io.submit(slow, lambda outcome: None)
    job = t.h.submit_load([t.key(0)])
    os.truncate(file_path(t, 0), 5000)
    assert t.h.poll() == []
    gate.set()
    assert t.result(job).pages == (None,)
    t.h.complete_load(job)


def test_an_internal_error_is_a_fault_too(harness):
    t = harness(0, 8)
    t.disk.medium.folder.path = None
    t.store(t.key(0))
    t.settle()
    (fault,) = t.faults()
    assert fault[1].startswith("internal error")
    assert t.disk.io.alive
    t.h.close()


def test_the_cap_holds_on_real_bytes_at_every_moment(harness):
    """The real blocks are summed by the I/O thread itself, around every write and deletion."""
    t = harness(2, 5)
    medium, seen = t.disk.medium, []
    put, remove = medium.put, medium.remove

    def sum_blocks():
        seen.append(sum(item.stat().st_blocks * 512 for item in os.scandir(medium.place)))

    def watched_put(puts):
        dones = put(puts)
        sum_blocks()
        return dones

    def watched_remove(keys):
        sum_blocks()
        return remove(keys)

    medium.put, medium.remove = watched_put, watched_remove
    for number in range(120):
        t.store(t.key(number))
        t.h.poll()
        if number % 3 == 0:
            t.settle()
    t.settle()
    assert len(seen) > 50
    assert max(seen) <= t.h.stats().tiers[1].capacity_bytes
    assert t.h.stats().tiers[1].num_evictions > 10 and not t.faults()
    t.h.check_integrity(strict=True)


def test_header_tells_everything():
    key = PrivateKey("request é", 3, 1, 7)
    record = PageRecord(encode_key(key), 8192, (1, 2**64 - 1), 8192)
    header = encode_header(record)
    assert len(header) == header_bytes(len(record.key), 2) == 4096
    assert header[:8] == b"KVWBPAGE"
    version, slices, page_bytes, key_length = struct.unpack_from("<IIQI", header, 8)
    assert (version, slices, page_bytes, key_length) == (2, 2, 8192, len(record.key))
    assert header_bytes(33, 1000) == 8192
    assert encode_key(b"R" + bytes(31)) != encode_key(PrivateKey("", 0, 0, 0))
