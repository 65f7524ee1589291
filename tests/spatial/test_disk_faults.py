"""Whatever happens to the files, a load returns the right bytes or a counted miss."""

import dataclasses
import os
import shutil
import subprocess
import threading

import numpy as np
import pytest

from workbench.cache.tier import Lookup
from workbench.errors import TierError
from workbench.spatial.hierarchy.faults import FAULTS, inject
from workbench.spatial.hierarchy.io_thread import Outcome
from workbench.spatial.hierarchy.medium import encode_key

EXPECTED = {  # zeros and strangers' bytes have the wrong checksum, whatever lies there
    "corrupt_dram": ("G2", {"corrupt"}),
    "corrupt_disk": ("G3", {"corrupt"}),
    "foreign_disk": ("G3", {"corrupt"}),
    "punch_disk": ("G3", {"corrupt"}),
    "cut_disk": ("G3", {"truncated"}),
}


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
    assert t.h.lookups.lookup(t.key(0)) is Lookup.MISS
    t.settle()
    assert t.h.stats().tiers[tier == "G3"].used_bytes == 0
    t.h.check_integrity(strict=True)
    assert t.store(t.key(0))  # the tier goes on
    t.settle()
    assert t.load([t.key(0)]) != [""]


def test_nothing_to_damage_and_unknown_kind(harness):
    t = harness(0, 0)
    assert all(inject(t.h, kind, np.random.default_rng(0)) is None for kind in FAULTS)
    with pytest.raises(ValueError, match="unknown fault 'fire': choose one of corrupt_dram"):
        inject(t.h, "fire", np.random.default_rng(0))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_disk_without_room_is_refused_and_nothing_changes(harness, tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine forbids mounting")
    try:
        t = harness(0, 8, disk_path=str(tmp_path))
        t.store(t.key(0))
        t.settle()
        before = t.h.stats().tiers
        with pytest.raises(TierError, match="there is no room for the disk tier to grow"):
            t.h.configure(dataclasses.replace(t.settings, disk_mib=8.0))
        assert t.h.stats().tiers == before and t.load([t.key(0)]) == ["G3"]
        t.h.check_integrity(strict=True)
        t.h.close()
        with pytest.raises(TierError, match="room|space"):
            harness(0, 1000, disk_path=str(tmp_path))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_deleted_from_outside_goes_on_without_its_name(harness, tmp_path):
    t = harness(0, 8, disk_path=str(tmp_path / "tier"))
    t.store(t.key(0))
    t.settle()
    shutil.rmtree(tmp_path / "tier")
    t.store(t.key(1))
    t.settle()
    assert t.load([t.key(0), t.key(1)]) == ["G3", "G3"] and not t.faults()


def test_another_keys_valid_page_is_not_ours(harness):
    """Whole pages in each other's place: the session mix-up of the field."""
    t = on_disk(harness, 2)
    disk = t.disk.medium
    starts = [disk.runs_of(encode_key(t.key(n)))[0][0] * 4096 for n in (0, 1)]
    with open(disk.place, "r+b") as file:
        pages = []
        for start in starts:
            file.seek(start)
            pages.append(file.read(4096 + t.page_bytes))
        for start, page in zip(starts, reversed(pages), strict=True):
            file.seek(start)
            file.write(page)
        file.flush()
        os.fsync(file.fileno())
    assert t.load([t.key(0), t.key(1)]) == ["", ""]
    assert t.faults() == [("G3", "corrupt")] * 2


def test_damage_between_submit_and_read(harness):
    """The file is cut while its read waits behind a slow transfer."""
    t = on_disk(harness)
    gate = threading.Event()

    def slow():
        assert gate.wait(10)
        return Outcome()

    t.disk.io.submit(slow, lambda outcome: None)
    job = t.h.submit_load([t.key(0)])
    os.truncate(t.disk.medium.place, 5000)
    assert t.h.poll() == []
    gate.set()
    assert t.result(job).pages == (None,)
    t.h.complete_load(job)


def test_an_internal_error_is_a_fault_too(harness):
    t = harness(0, 8)
    put, t.disk.medium.put = t.disk.medium.put, None
    t.store(t.key(0))
    t.settle()
    (fault,) = t.faults()
    assert fault[1].startswith("internal error")
    t.disk.medium.put = put
    t.store(t.key(0))
    t.settle()
    assert t.load([t.key(0)]) == ["G3"]


def test_the_cap_holds_on_real_bytes_at_every_moment(harness):
    """The real blocks are summed by the I/O thread itself, around every write and deletion."""
    t = harness(2, 5)
    medium, seen = t.disk.medium, []
    put, remove = medium.put, medium.remove

    def sum_blocks():
        seen.append((os.stat(medium.place).st_blocks * 512, medium.real_bytes))

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
    assert max(real for real, _ in seen) <= t.settings.disk_mib * 2**20
    assert max(pages for _, pages in seen) <= t.h.stats().tiers[1].capacity_bytes
    assert t.h.stats().tiers[1].num_evictions > 10 and not t.faults()
    t.h.check_integrity(strict=True)
