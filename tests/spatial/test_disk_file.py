"""The disk tier's one file: right bytes or a miss, under a hard cap, whatever the disk does."""

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.spatial.media import (
    CANARY,
    PAGE,
    SLICES,
    key_of,
    numbered,
    page_of,
    private_key,
    put_of,
    read,
    reasons,
)  # fmt: skip
from workbench.cache.page_copy import slice_checksums
from workbench.errors import TierError
from workbench.spatial.hierarchy import disk_faults
from workbench.spatial.hierarchy.aligned import ALIGN, address, aligned_empty
from workbench.spatial.hierarchy.direct_io import DiskWays
from workbench.spatial.hierarchy.disk_file import LEAST_CAPACITY_BYTES, DiskFile
from workbench.spatial.hierarchy.medium import Get, Put

MIB = 1 << 20
Open = Callable[..., DiskFile]
WAYS = [
    DiskWays(), DiskWays(ring=False), DiskWays(direct=False), DiskWays(ring=False, direct=False),
    DiskWays(depth=1, coalesce=False),
]  # fmt: skip


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens files of 8 MiB in one folder, and closes what is still open."""
    disks: list[DiskFile] = []

    def open_one(
        capacity_bytes: int = 8 * MIB, keep: bool = False, ways: DiskWays | None = None
    ) -> DiskFile:
        disks.append(DiskFile(str(tmp_path), capacity_bytes, keep, ways))
        return disks[-1]

    yield open_one
    for disk in disks:
        disk.close(keep=False)


def again(disk: DiskFile, opened: Open, capacity_bytes: int = 8 * MIB) -> DiskFile:
    """The file as the next process finds it."""
    disk.close(keep=True)
    return opened(capacity_bytes, keep=True)


def scanned(disk: DiskFile) -> list[bytes]:
    return [record.key for record, _ in disk.scan()]


def aligned(put: Put) -> Put:
    page = aligned_empty(put.payload.nbytes)
    page[:] = put.payload
    return Put(put.record, page)


# ---- bytes


@pytest.mark.parametrize("ways", WAYS)
def test_what_was_put_is_read_whole_and_by_ranges(opened: Open, ways: DiskWays) -> None:
    disk = opened(ways=ways)
    puts = [numbered(number) for number in range(40)]
    done = disk.put(puts)
    assert reasons(done) == [""] * 40
    for put, each in zip(puts, done, strict=True):
        assert each.real_bytes == disk.charge_bytes(put.record) == PAGE + ALIGN
        assert read(disk, put) == ""
        for at, size in ((0, 1), (4095, 2), (PAGE // 2, PAGE // SLICES), (PAGE - 1, 1), (7, 9999)):
            assert read(disk, put, at, size) == ""
    assert disk.real_bytes == 40 * (PAGE + ALIGN)
    disk.check()


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("num_bytes", [1, 4095, 4096, 4097, 12_345, 3 * MIB + 5])
def test_pages_of_any_size(opened: Open, num_bytes: int, ways: DiskWays) -> None:
    disk = opened(ways=ways)
    puts = [put_of(key_of(n), page_of(n, num_bytes), 1, codec="zstd") for n in range(2)]
    assert reasons(disk.put(puts)) == ["", ""]
    assert [read(disk, put) for put in puts] == ["", ""]
    assert disk.probe([key_of(1), key_of(7), key_of(0)]) == [puts[1].record, None, puts[0].record]


def test_a_batch_of_slices_of_several_pages(opened: Open) -> None:
    disk = opened()
    puts = [numbered(number) for number in range(4)]
    disk.put(puts)
    size = PAGE // SLICES
    out = aligned_empty(4 * PAGE + ALIGN)
    out[:] = CANARY
    rows = out[: 4 * PAGE].reshape(4, SLICES, size)
    gets = [
        Get(put.record, piece * size, rows[row, piece])
        for piece in range(SLICES)  # in the order of layers, as an engine asks
        for row, put in enumerate(puts)
    ]
    before = disk.counts.num_reads
    assert reasons(disk.get(gets)) == [""] * len(gets)
    assert (rows.reshape(4, PAGE) == np.stack([put.payload for put in puts])).all()
    assert (out[4 * PAGE :] == CANARY).all()
    assert disk.counts.num_reads - before == 4, "slices that lie side by side are one I/O"


def test_aligned_pages_are_not_copied_and_others_are_counted(opened: Open) -> None:
    disk = opened()
    put = aligned(numbered(1))
    odd = np.empty(PAGE + 1, np.uint8)
    odd = odd[1:] if address(odd[1:]) % ALIGN else odd[:-1]
    odd[:] = page_of(2)
    disk.put([put])
    out = aligned_empty(PAGE)
    disk.get([Get(put.record, 0, out)])
    assert disk.bounce.num_copies == 0 and (out == put.payload).all()
    disk.put([Put(numbered(2).record, odd)])
    assert (disk.bounce.num_copies, disk.bounce.copied_bytes) == (1, PAGE)
    assert read(disk, numbered(2), 100, 50) == ""
    assert (disk.bounce.num_copies, disk.bounce.copied_bytes) == (2, PAGE + 50)
    assert disk.bounce.capacity_bytes == MIB


def test_adjacent_pages_are_gathered(opened: Open) -> None:
    disk = opened()
    puts = [aligned(numbered(number)) for number in range(28)]
    before = disk.counts.num_writes
    disk.put(puts)
    size = 28 * (PAGE + ALIGN)
    assert disk.counts.num_writes - before == -(-size // MIB) + 1, "and one of the table"
    assert disk.counts.written_bytes >= size


def test_the_same_key_again_is_the_newer_page(opened: Open) -> None:
    disk = opened(keep=True)
    old, new = put_of(key_of(1), page_of(1)), put_of(key_of(1), page_of(2, 8192))
    disk.put([old])
    assert reasons(disk.put([new])) == [""]
    assert read(disk, old) == "gone" and read(disk, new) == ""
    assert disk.real_bytes == disk.charge_bytes(new.record)
    last = put_of(key_of(1), page_of(3))
    disk.put([old, last])  # twice in one batch
    assert read(disk, last) == ""
    disk.check()
    disk = again(disk, opened)
    assert scanned(disk) == [key_of(1)] and read(disk, last) == ""


def test_remove(opened: Open) -> None:
    disk = opened()
    puts = [numbered(number) for number in (1, 2)]
    disk.put(puts)
    assert reasons(disk.remove([key_of(1), key_of(7), key_of(1)])) == ["", "", ""]
    assert read(disk, puts[0]) == "gone" and read(disk, puts[1]) == ""
    assert disk.real_bytes == disk.charge_bytes(puts[1].record)
    assert reasons(disk.put([puts[0]])) == [""] and read(disk, puts[0]) == ""
    assert disk.put([]) == disk.get([]) == disk.remove([]) == disk.probe([]) == []


def test_a_range_outside_the_payload(opened: Open) -> None:
    disk = opened()
    put = numbered(1)
    disk.put([put])
    for offset in (-1, PAGE - 9):
        with pytest.raises(ValueError, match=f"offset {offset} and 10 bytes: a range of the payl"):
            disk.get([Get(put.record, offset, np.empty(10, np.uint8))])


def test_a_record_too_large_for_its_header(opened: Open) -> None:
    disk = opened()
    put = put_of(key_of(1), page_of(1), 600)
    long = put_of(private_key("r" * 5000), page_of(2))
    assert reasons(disk.put([put, numbered(2), long])) == ["over_cap", "", "over_cap"]
    disk.check()


# ---- the cap


@pytest.mark.parametrize("num_bytes", [ALIGN, 3 * ALIGN, 45 * ALIGN])
def test_what_is_usable_can_be_used_and_the_cap_holds(opened: Open, num_bytes: int) -> None:
    disk = opened()
    assert disk.file_bytes <= disk.capacity_bytes
    payload = aligned_empty(num_bytes)
    payload[:] = 1
    sums = slice_checksums(payload, 1)
    charge = num_bytes + ALIGN
    room = disk.usable_bytes // charge
    puts = [put_of(key_of(number), payload, 1) for number in range(room + 200)]
    assert sums == puts[0].record.checksums
    for first in range(0, room, 100):
        batch = puts[first : min(room, first + 100)]
        assert reasons(disk.put(batch)) == [""] * len(batch)
        assert disk.file_bytes <= disk.capacity_bytes
    done = reasons(disk.put(puts[room:]))
    assert done[-1] == "over_cap" and set(done) <= {"", "over_cap"}
    disk.check()
    disk.remove([put.record.key for put in puts])
    assert disk.real_bytes == 0
    disk.check()


def test_mixed_sizes_at_the_brim(opened: Open) -> None:
    """Formats change: the oldest pages make room by bytes, and every page finds it."""
    disk = opened()
    rng = np.random.default_rng(3)
    live: dict[int, Put] = {}
    for number in range(600):
        put = numbered(number, int(rng.choice([4096, 20_000, 65_536, 368_640])))
        while sum(disk.charge_bytes(p.record) for p in [*live.values(), put]) > disk.usable_bytes:
            old = next(iter(live)) if number % 3 else list(live)[int(rng.integers(len(live)))]
            disk.remove([live.pop(old).record.key])
        assert reasons(disk.put([put])) == [""]
        assert disk.file_bytes <= disk.capacity_bytes
        live[number] = put
    assert all(read(disk, put) == "" for put in live.values())
    disk.check()


def test_a_smaller_and_a_larger_cap_while_open(opened: Open) -> None:
    disk = opened()
    puts = [numbered(number) for number in range(60)]
    disk.put(puts)
    disk.remove([key_of(number) for number in range(0, 60, 2)])  # what stays lies far apart
    assert disk.resize(3 * MIB)
    assert disk.file_bytes <= 3 * MIB
    assert all(read(disk, put) == "" for put in puts[1::2])
    assert reasons(disk.put(puts[0:40:2]))[-1] == "over_cap"
    assert disk.resize(16 * MIB)
    assert 15 * MIB < disk.file_bytes <= 16 * MIB
    assert reasons(disk.put(puts)) == [""] * 60
    assert all(read(disk, put) == "" for put in puts)
    disk.check()


def test_a_cap_below_what_is_there_holds_once_it_is_removed(opened: Open) -> None:
    disk = opened()
    puts = [numbered(number) for number in range(100)]
    disk.put(puts)
    assert not disk.resize(2 * MIB)
    assert not disk.resize(LEAST_CAPACITY_BYTES - 1)
    assert reasons(disk.put([numbered(200)])) == ["over_cap"]
    for put in puts[:80]:
        disk.remove([put.record.key])
    assert disk.file_bytes <= 2 * MIB
    assert all(read(disk, put) == "" for put in puts[80:])
    disk.check()


# ---- who may open it


def test_a_private_file_is_gone_after_close() -> None:
    disk = DiskFile("", 2 * MIB, keep=True)
    assert not disk.persistent
    place = disk.place
    assert os.stat(place).st_blocks * 512 == disk.file_bytes and os.stat(place).st_mode & 0o77 == 0
    disk.close(keep=True)
    disk.close(keep=True)
    assert not os.path.exists(os.path.dirname(place))


def test_a_users_file_stays_only_if_it_is_to(tmp_path: Path) -> None:
    for keep, at_close, stays in ((False, True, False), (True, False, False), (True, True, True)):
        disk = DiskFile(str(tmp_path), 2 * MIB, keep)
        disk.put([numbered(1)])
        disk.close(at_close)
        assert os.path.exists(disk.place) == stays
    DiskFile(str(tmp_path), 2 * MIB, keep=False).close(True)
    assert list(tmp_path.iterdir()) == []


def test_two_engines_on_one_file(opened: Open, tmp_path: Path) -> None:
    disk = opened(keep=True)
    disk.put([numbered(1)])
    sentence = (
        f"the disk tier's file {disk.place!r} is in use by another engine: give tiers.disk_path "
        "another folder or close that engine"
    )
    for keep in (False, True):
        with pytest.raises(TierError, match=f"^{re.escape(sentence)}$"):
            opened(keep=keep)
    assert read(disk, numbered(1)) == ""
    code = (
        f"from workbench.spatial.hierarchy.disk_file import *; DiskFile({str(tmp_path)!r}, 99999)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert sentence in other.stderr


def test_a_cap_smaller_than_any_page(tmp_path: Path) -> None:
    with pytest.raises(TierError, match=f"of 5000 bytes .*: give at least {LEAST_CAPACITY_BYTES} "):
        DiskFile(str(tmp_path), 5000)
    disk = DiskFile(str(tmp_path), LEAST_CAPACITY_BYTES)
    put = numbered(1, ALIGN)
    assert reasons(disk.put([put, numbered(2, 2 * ALIGN)])) == ["", "over_cap"]
    assert read(disk, put) == "" and disk.file_bytes <= LEAST_CAPACITY_BYTES
    disk.close(False)


def test_a_path_that_is_a_file_or_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TierError, match="the disk tier cannot write to '.*file' .*: give tiers."):
        DiskFile(str(tmp_path / "file"), MIB)
    (tmp_path / "kv-workbench-tier").symlink_to("/etc")
    with pytest.raises(TierError, match="is a link, a file or another user's folder: give tiers.d"):
        DiskFile(str(tmp_path), MIB)


@pytest.mark.parametrize("what", ["link", "hard link", "folder", "pipe", "content"])
def test_a_strangers_thing_in_the_files_place_stays(tmp_path: Path, what: str) -> None:
    own = tmp_path / "kv-workbench-tier"
    own.mkdir(mode=0o700)
    stranger, place = tmp_path / "diary", own / "pages.kv"
    stranger.write_text("mine" * 5000)
    if what == "link":
        place.symlink_to(stranger)
    elif what == "hard link":
        os.link(stranger, place)
    elif what == "folder":
        place.mkdir()
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.write_text("mine" * 5000)
    before = os.lstat(place)
    sentence = f"{str(place)!r} is not the file of a disk tier of yours"
    with pytest.raises(TierError, match=f"^{re.escape(sentence)}.*move it away"):
        DiskFile(str(tmp_path), MIB, keep=True)
    after = os.lstat(place)
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
    assert stranger.read_text() == "mine" * 5000


def child(code: str, *command: str) -> str:
    """What a Python process prints; it must end well."""
    done = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_folder_without_permission(tmp_path: Path) -> None:
    """In a child without root's rights where the test runs as root."""
    code = f"""
        import os
        from pathlib import Path
        from workbench.errors import TierError
        from workbench.spatial.hierarchy.disk_file import DiskFile
        path = Path({str(tmp_path)!r})
        path.chmod(0o555)
        if os.geteuid() == 0:
            for folder in [*path.parents][:-1]:
                if str(folder) != "/tmp":
                    folder.chmod(0o755)
            os.setuid(65534)
        try:
            DiskFile(str(path), 1 << 20)
        except TierError as error:
            print(error)
    """
    assert child(code).strip() == (
        f"the disk tier cannot write to {str(tmp_path)!r} (Permission denied): give "
        "tiers.disk_path a folder you may write to"
    )


SMALL_DISK = """
    import os
    import numpy as np
    from tests.spatial.media import numbered, read, reasons
    from workbench.errors import TierError
    from workbench.spatial.hierarchy.disk_file import DiskFile
    root = {root!r}
    try:
        DiskFile(root, 100 << 20)
    except TierError as error:
        print(error)
    assert os.listdir(root) == [], os.listdir(root)
    try:
        DiskFile(root, 100 << 20, keep=True)
    except TierError:
        assert os.listdir(root) == [], os.listdir(root)
    disk = DiskFile(root, 32 << 20)
    puts = [numbered(number) for number in range(300)]
    assert set(reasons(disk.put(puts))) == {{""}}
    assert not disk.resize(100 << 20)
    assert disk.capacity_bytes == 32 << 20 and disk.file_bytes <= 32 << 20
    assert all(read(disk, put) == "" for put in puts)
    assert disk.resize(48 << 20) and disk.resize(24 << 20) and disk.file_bytes <= 24 << 20
    assert all(read(disk, put) == "" for put in puts)
    disk.check()
    print(disk.way)
    disk.close(False)
"""


BRIM = """
    import errno
    import os
    from tests.spatial.media import numbered, read, reasons
    from workbench.errors import TierError
    from workbench.spatial.hierarchy.disk_file import DiskFile
    from workbench.spatial.hierarchy.object_store import ObjectStore
    root = {root!r}
    folder = os.path.join(root, "objects")
    early = ObjectStore(folder)
    kept = [numbered(number) for number in range(8)]
    assert reasons(early.put(kept)) == [""] * 8
    disk = DiskFile(os.path.join(root, "tier"), 32 << 20)

    stranger = os.path.join(root, "stranger")
    with open(stranger, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    assert os.statvfs(root).f_bavail == 0, "filled to the brim"

    puts = [numbered(number) for number in range(300)]
    assert set(reasons(disk.put(puts))) == {{""}}, "its blocks were its own before"
    assert all(read(disk, put) == "" for put in puts)
    assert not disk.resize(40 << 20) and disk.capacity_bytes == 32 << 20
    assert all(read(disk, put) == "" for put in puts)
    disk.check()
    try:
        DiskFile(os.path.join(root, "another"), 8 << 20)
        raise SystemExit("a file was made where no block is free")
    except TierError as error:
        print(error)

    late = [numbered(number) for number in range(100, 120)]
    print(sorted(set(reasons(early.put(late)))))
    assert early.probe([put.record.key for put in late]) == [None] * 20, "no half of an object"
    assert all(read(early, put) == "" for put in kept)
    half = [name for _, _, names in os.walk(folder) for name in names if "#" in name]
    print(len(half), early.real_bytes == sum(early.charge_bytes(put.record) for put in kept))

    os.unlink(stranger)
    assert reasons(early.put(late)) == [""] * 20 and all(read(early, put) == "" for put in late)
    assert disk.resize(40 << 20)
    early.close(True)
    disk.close(False)
"""


def small_disk(tmp_path: Path) -> list[str]:
    """Words before a command that see a file system of 64 MiB there, as nobody else does."""
    options = ["-m"] if os.geteuid() == 0 else ["-rm"]
    mount = f'mount -t tmpfs -o size=64m tmpfs {tmp_path} && exec "$@"'
    command = ["unshare", *options, "sh", "-c", mount, "sh"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("no rights to mount: test_a_file_that_may_not_be_so_large stands in")
    return command


def test_a_disk_filled_to_the_brim_by_somebody_else(tmp_path: Path) -> None:
    told, faults, left = child(BRIM.format(root=str(tmp_path)), *small_disk(tmp_path)).splitlines()
    assert "(0 MiB are free): choose a smaller tiers.disk_mib" in told
    assert faults == "['disk_full']"
    assert left == "0 True", "nothing of what did not fit stays, and it is not counted"


def test_a_full_disk(tmp_path: Path) -> None:
    command = small_disk(tmp_path)
    first, way = child(SMALL_DISK.format(root=str(tmp_path)), *command).splitlines()
    assert re.fullmatch(
        r"the disk has no room for '.*pages.kv' of 100 MiB \(\d+ MiB are free\): choose a smaller "
        r"tiers.disk_mib, or a tiers.disk_path on another disk", first,
    )  # fmt: skip
    assert way in ("io_uring, page cache", "preadv, page cache"), "memory has no cache to pass"


def test_a_file_that_may_not_be_so_large(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 131072 && exec "$@"', "sh"]  # 64 MiB in blocks of 512
    first, _ = child(SMALL_DISK.format(root=str(tmp_path)), *limited).splitlines()
    assert re.fullmatch(
        "no file may be as large as '.*pages.kv' of 100 MiB: choose a smaller tiers.disk_mib", first
    )
    assert resource.RLIMIT_FSIZE  # what ulimit -f sets


# ---- the next process


def test_pages_are_found_again_in_the_order_of_their_use(opened: Open) -> None:
    disk = opened(keep=True)
    puts = [numbered(number, 4096 * (1 + number % 5)) for number in range(20)]
    disk.put(puts)
    disk.remove([key_of(3), key_of(4)])
    read(disk, puts[0])
    disk.put([put_of(private_key(), page_of(99))])
    left = [number for number in range(1, 20) if number not in (3, 4)]
    disk = again(disk, opened)
    assert scanned(disk) == [key_of(number) for number in [*left, 0]]
    for record, real in disk.scan():
        assert real == disk.charge_bytes(record)
    assert all(read(disk, puts[number]) == "" for number in [*left, 0])
    assert disk.real_bytes == sum(disk.charge_bytes(puts[number].record) for number in [*left, 0])
    disk.check()
    disk = again(disk, opened)
    assert scanned(disk)[-1] == key_of(0)


def test_another_cap_for_the_next_process(opened: Open) -> None:
    disk = opened(keep=True)
    puts = [numbered(number) for number in range(50)]
    disk.put(puts)
    disk = again(disk, opened, 2 * MIB)
    assert disk.file_bytes <= 2 * MIB
    kept = scanned(disk)
    assert kept == [key_of(number) for number in range(50 - len(kept), 50)] and len(kept) >= 28
    assert all(read(disk, put) == "" for put in puts[-len(kept) :])
    disk = again(disk, opened, 16 * MIB)
    assert scanned(disk) == kept and 15 * MIB < disk.file_bytes <= 16 * MIB
    assert reasons(disk.put(puts)) == [""] * 50
    disk = again(disk, opened, LEAST_CAPACITY_BYTES)
    assert scanned(disk) == [] and disk.file_bytes <= LEAST_CAPACITY_BYTES
    disk.check()


def test_damaged_records_are_ignored_and_their_blocks_free_again(opened: Open) -> None:
    disk = opened(keep=True)
    puts = [numbered(number) for number in range(8)]
    disk.put(puts)
    disk_faults.overwrite_page(disk, key_of(1))
    disk_faults.flip_header_bit(disk, key_of(2), 60, 3)  # within the key
    disk_faults.flip_header_bit(disk, key_of(3), 8, 1)  # version
    disk_faults.flip_header_bit(disk, key_of(4), 32, 0)  # generation
    disk_faults.flip_payload_bit(disk, key_of(5), 777, 5)  # found, and caught when it is read
    disk = again(disk, opened)
    assert scanned(disk) == [key_of(number) for number in (0, 5, 6, 7)]
    assert disk.real_bytes == 4 * disk.charge_bytes(puts[0].record)
    disk.check()
    out = np.empty(PAGE, np.uint8)
    assert reasons(disk.get([Get(puts[5].record, 0, out)])) == [""]
    sums = slice_checksums(out, SLICES)
    assert [a == b for a, b in zip(sums, puts[5].record.checksums, strict=True)].count(False) == 1
    assert reasons(disk.put(puts)) == [""] * 8 and all(read(disk, put) == "" for put in puts)


@pytest.mark.parametrize("place, bit", [(9, 0), (17, 2), (30, 1)])
def test_a_file_of_another_version_or_with_a_damaged_start_is_begun_anew(
    opened: Open, place: int, bit: int
) -> None:
    disk = opened(keep=True)
    disk.put([numbered(1)])
    disk.close(keep=True)
    disk_faults.flip_bit(disk.place, place, bit)
    disk = opened(keep=True)
    assert scanned(disk) == [] and disk.real_bytes == 0
    assert reasons(disk.put([numbered(1)])) == [""] and read(disk, numbered(1)) == ""


@pytest.mark.parametrize("num_bytes", [0, 100, 4096, 5000, 300_000])
def test_a_file_that_was_cut(opened: Open, num_bytes: int) -> None:
    disk = opened(keep=True)
    puts = [numbered(number) for number in range(10)]
    disk.put(puts)
    disk_faults.cut_file(disk, num_bytes)
    for put in puts:
        assert read(disk, put) in ("", "truncated")
    assert read(disk, puts[-1]) == "truncated"
    disk = again(disk, opened)
    found = scanned(disk)
    assert len(found) <= 4 and all(read(disk, puts[found.index(key)]) == "" for key in found)
    assert reasons(disk.put(puts)) == [""] * 10 and all(read(disk, put) == "" for put in puts)
    disk.check()


def test_a_punched_page_reads_as_zeros_which_its_checksums_refuse(opened: Open) -> None:
    disk = opened()
    put = numbered(1)
    disk.put([put, numbered(2)])
    disk_faults.punch_page(disk, key_of(1))
    out = np.empty(PAGE, np.uint8)
    assert reasons(disk.get([Get(put.record, 0, out)])) == [""]
    assert not out.any() and slice_checksums(out, SLICES) != put.record.checksums
    assert read(disk, numbered(2)) == ""


def test_a_deleted_file_still_serves_its_engine(opened: Open) -> None:
    disk = opened(keep=True)
    disk.put([numbered(1)])
    os.unlink(disk.place)
    assert reasons(disk.put([numbered(2)])) == [""]
    assert read(disk, numbered(1)) == read(disk, numbered(2)) == ""
    disk = again(disk, opened)
    assert scanned(disk) == []


# ---- a crash

WRITER = """
    import itertools, os, signal, sys
    from tests.spatial.media import key_of, numbered
    from workbench.spatial.hierarchy import disk_file
    from workbench.spatial.hierarchy.disk_pages import DiskPages

    class Dies(DiskPages):
        def publish(self, pages):
            if {dies}:
                os.kill(os.getpid(), signal.SIGKILL)  # payload and header lie there, no entry does
            return super().publish(pages)

    disk_file.DiskPages = Dies
    disk = disk_file.DiskFile({root!r}, 8 << 20, keep=True)
    for first in itertools.count(0, 8):
        if first >= 48:
            disk.remove([key_of(number % 10_000) for number in range(first - 48, first - 40)])
        puts = [numbered(number % 10_000) for number in range(first, first + 8)]
        done = disk.put(puts)
        print(first, {{each.reason for each in done}}, flush=True)
"""


def test_killed_between_payload_and_entry(tmp_path: Path) -> None:
    code = textwrap.dedent(WRITER.format(root=str(tmp_path), dies="len(self)"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL and done.stdout == "0 {''}\n", done.stderr
    disk = DiskFile(str(tmp_path), 8 * MIB, keep=True)
    assert scanned(disk) == [key_of(number) for number in range(8)]
    assert all(read(disk, numbered(number)) == "" for number in range(8))
    assert disk.real_bytes == 8 * (PAGE + ALIGN)
    disk.close(False)


@pytest.mark.parametrize("num_lines", [1, 7, 12, 19, 31])
def test_killed_in_the_middle_of_puts(tmp_path: Path, num_lines: int) -> None:
    code = textwrap.dedent(WRITER.format(root=str(tmp_path), dies="False"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(num_lines)]
        writer.kill()
    assert all(line.endswith(b"{''}\n") for line in lines)
    disk = DiskFile(str(tmp_path), 8 * MIB, keep=True)
    pages = {numbered(number).record.key: numbered(number) for number in range(8 * num_lines + 80)}
    found = scanned(disk)
    assert 8 <= len(found) <= 56 and len(set(found)) == len(found)
    for key in found:
        assert read(disk, pages[key]) == ""
    disk.check()
    disk.close(False)
