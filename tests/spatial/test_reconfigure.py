"""Live changes: sizes, path, off and on; bad settings end in one sentence and change nothing."""

import dataclasses
import os
import re
from pathlib import Path

import pytest

from tests.spatial.conftest import disk_mib
from workbench.cache.tier import Lookup
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.errors import TierError
from workbench.spatial.hierarchy import Hierarchy
from workbench.spatial.hierarchy.disk_folder import DiskFolder

PAGE = 8192
MIB = 1024 * 1024


def change(t, **changes):
    """Apply changes given in pages (`dram`, `disk`) or as settings."""
    values = {}
    for name, value in changes.items():
        if name == "dram":
            values["dram_mib"] = value * PAGE / MIB
        elif name == "disk":
            values["disk_mib"] = disk_mib(value)
        else:
            values[name] = value
    t.settings = dataclasses.replace(t.settings, **values)
    return t.h.configure(t.settings)


def filled(harness, dram, disk, count, **more):
    t = harness(dram, disk, **more)
    for number in range(count):
        t.store(t.key(number))
        t.settle()
    return t


def test_shrinking_dram_demotes(harness):
    t = filled(harness, 4, 8, 4)
    report = change(t, dram=1)
    assert (report.num_evicted_dram, report.num_demoted) == (3, 3)
    assert (report.dram_bytes_before, report.dram_bytes) == (4 * PAGE, PAGE)
    t.settle()
    assert all(t.is_hit(t.key(n)) for n in range(4))
    assert t.load([t.key(0)]) == ["G3"]
    t.settle()
    t.h.check_integrity(strict=True)


def test_shrinking_dram_without_disk_evicts(harness):
    t = filled(harness, 4, 0, 4)
    report = change(t, dram=1)
    assert (report.num_evicted_dram, report.num_demoted) == (3, 0)
    assert [t.is_hit(t.key(n)) for n in range(4)] == [False, False, False, True]
    assert t.h.stats().host_allocated_bytes <= PAGE


def test_shrinking_disk_evicts_the_oldest_files(harness):
    t = filled(harness, 0, 6, 6)
    report = change(t, disk=2)
    assert report.num_evicted_disk == 4
    t.settle()
    assert t.disk.medium.real_bytes <= t.h.stats().tiers[1].capacity_bytes
    assert [t.is_hit(t.key(n)) for n in range(6)] == [False] * 4 + [True] * 2
    t.h.check_integrity(strict=True)


def test_growing_keeps_everything(harness):
    t = filled(harness, 1, 3, 4)
    change(t, dram=8, disk=16)
    assert all(t.is_hit(t.key(n)) for n in range(4))
    assert t.load([t.key(n) for n in range(4)]) == ["G3"] * 3 + ["G2"]


def test_off_and_on_again(harness):
    t = filled(harness, 2, 8, 4)
    place = os.path.dirname(t.h.stats().tiers[1].place)
    report = change(t, disk=0)
    assert report.num_evicted_disk >= 2 and not os.path.exists(place)
    assert not t.h.stats().tiers[1].on and t.h.stats().staging_capacity_bytes == 0
    assert t.load([t.key(0), t.key(3)]) == ["", "G2"]
    change(t, dram=0)
    assert t.h.lookups.lookup(t.key(3)) is Lookup.MISS and not t.store(t.key(3))
    change(t, dram=2, disk=8)
    assert t.store(t.key(5)) and t.load([t.key(5)]) == ["G2"]


def test_a_pinned_page_outlives_its_tier(harness):
    t = filled(harness, 2, 0, 2)
    job = t.h.submit_load([t.key(0), t.key(1)])
    result = t.result(job)
    change(t, dram=0)
    t.h.check_integrity()
    assert t.h.lookups.lookup(t.key(0)) is Lookup.MISS
    assert all((result.pages[n] == t.page(t.key(n))).all() for n in range(2))
    t.h.complete_load(job)
    assert t.h.stats().tiers[0].used_bytes == 0


def test_pinned_pages_over_the_cap_go_when_unpinned(harness):
    t = filled(harness, 3, 0, 3)
    job = t.h.submit_load([t.key(n) for n in range(3)])
    result = t.result(job)
    assert change(t, dram=1).num_pinned_kept == 3
    assert all((result.pages[n] == t.page(t.key(n))).all() for n in range(3))
    t.h.check_integrity()
    t.h.complete_load(job)
    assert t.h.stats().tiers[0].used_bytes == PAGE
    assert t.is_hit(t.key(0))  # its prefix, touched last, stays


def test_a_load_survives_its_disk(harness, tmp_path):
    t = filled(harness, 0, 8, 3, disk_path=str(tmp_path / "one"))
    job = t.h.submit_load([t.key(n) for n in range(3)])
    change(t, disk_path=str(tmp_path / "two"))
    assert all((page == t.page(t.key(n))).all() for n, page in enumerate(t.result(job).pages))
    t.h.complete_load(job)
    assert list((tmp_path / "one").iterdir()) == []
    assert t.h.lookups.lookup(t.key(0)) is Lookup.MISS
    t.store(t.key(0))
    t.settle()
    assert t.load([t.key(0)]) == ["G3"]
    t.h.close()
    assert list((tmp_path / "two").iterdir()) == []


def test_a_store_survives_its_disk(harness, tmp_path):
    t = harness(0, 8, disk_path=str(tmp_path))
    t.store(t.key(0))
    change(t, disk=0)
    assert list(tmp_path.iterdir()) == []
    t.settle()
    assert t.h.stats().staging_used_bytes == 0


def test_strangers_files_in_the_users_folder_stay(harness, tmp_path):
    own = tmp_path / "kv-workbench-tier"
    own.mkdir(mode=0o700)
    (own / "diary.txt").write_text("mine")
    (own / f"page-{'0' * 32}-7.kv").write_text("left by an engine that died")
    (tmp_path / "note.txt").write_text("mine too")
    t = harness(0, 4, disk_path=str(tmp_path))
    t.store(t.key(0))
    t.settle()
    t.h.check_integrity(strict=True)
    t.h.close()
    assert sorted(path.name for path in own.iterdir()) == ["diary.txt"]
    assert (tmp_path / "note.txt").exists()


def test_dead_engines_private_folders_are_swept(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    live = DiskFolder("")
    dead = tmp_path / "kv-workbench-dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / f"page-{'0' * 32}-7.kv").touch()
    for folder in (dead, live.path):
        os.utime(folder, (0, 0))
    fresh = DiskFolder("")
    assert not dead.exists() and os.path.exists(live.path)
    fresh.close()
    live.close()
    assert list(tmp_path.iterdir()) == []


def opens(**settings):
    hierarchy = Hierarchy(TierSettings(**settings), PAGE, RealClock(), lambda kind, data: None)
    hierarchy.close()


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (
            {"dram_mib": 0.001},
            "tiers.dram_mib = 0.001 MiB holds no page of 8192 bytes: give at "
            "least 0.008, or 0 to switch DRAM off",
        ),
        (
            {"disk_mib": 0.01},
            "tiers.disk_mib = 0.01 MiB holds no page of 8192 bytes: give at "
            "least 0.024, or 0 to switch the disk tier off",
        ),
    ],
)
def test_capacity_smaller_than_a_page(settings, sentence):
    with pytest.raises(TierError, match=f"^{re.escape(sentence)}$"):
        opens(**settings)


@pytest.mark.parametrize("field, value", [("dram_mib", 0.008), ("disk_mib", 0.024)])
def test_the_advised_capacity_holds_a_page(harness, field, value):
    t = harness(0, 0)
    change(t, **{field: value})
    assert t.store(t.key(1))
    t.settle()
    assert t.is_hit(t.key(1)) and t.faults() == []


def test_a_path_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TierError, match="the disk tier cannot write to '.*file' .*: give tiers."):
        opens(disk_mib=1, disk_path=str(tmp_path / "file"))


def test_a_subfolder_that_is_a_link(tmp_path):
    (tmp_path / "kv-workbench-tier").symlink_to("/etc")
    with pytest.raises(TierError, match="is a link, a file or another user's folder: give tiers.d"):
        opens(disk_mib=1, disk_path=str(tmp_path))


def test_a_path_without_permission(tmp_path):
    """In a child without root's rights where the test runs as root."""
    tmp_path.chmod(0o555)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                for folder in [*tmp_path.parents][:-1]:
                    if folder != Path("/tmp"):
                        folder.chmod(0o755)
                os.setuid(65534)
            DiskFolder(str(tmp_path))
        except TierError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        assert pipe.read() == (
            f"the disk tier cannot write to {str(tmp_path)!r} (Permission denied): give "
            "tiers.disk_path a folder you may write to"
        )


def test_a_folder_in_use(harness, tmp_path):
    harness(0, 4, disk_path=str(tmp_path))
    with pytest.raises(TierError, match="is in use by another engine: give tiers.disk_path anoth"):
        opens(disk_mib=1, disk_path=str(tmp_path))


@pytest.mark.parametrize("bad", ["size", "path", "in_use"])
def test_a_refused_change_changes_nothing(harness, tmp_path, bad):
    (tmp_path / "file").touch()
    t = filled(harness, 2, 8, 4, disk_path=str(tmp_path / "one"))
    harness(0, 4, disk_path=str(tmp_path / "taken"))
    before = t.h.stats().tiers
    wrong = {
        "size": {"dram": 0.5},
        "path": {"dram": 1, "disk_path": str(tmp_path / "file")},
        "in_use": {"dram": 1, "disk_path": str(tmp_path / "taken")},
    }[bad]
    kept = t.settings
    with pytest.raises(TierError):
        change(t, **wrong)
    assert t.h.settings == kept and t.h.stats().tiers == before
    assert t.load([t.key(n) for n in range(4)]).count("") == 0


def test_memory_is_given_back(harness):
    t = filled(harness, 64, 0, 64)
    assert t.h.stats().host_allocated_bytes == 64 * PAGE
    change(t, dram=1)
    assert t.h.stats().host_allocated_bytes <= PAGE
    held = sum(buffer.nbytes for buffer in t.h.mover.memory.live.values())
    assert held == t.h.stats().tiers[0].used_bytes


def test_closing_with_everything_in_flight(harness):
    t = harness(1, 8)
    for number in range(8):
        t.store(t.key(number))
    t.h.submit_load([t.key(n) for n in range(8)])
    place = t.h.stats().tiers[1].place
    t.h.close()
    assert not os.path.exists(place) and not t.disk.io.alive
    assert t.h.mover.memory.live_bytes == 0 and t.h.mover.staging.used_bytes == 0
