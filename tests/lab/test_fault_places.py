"""The places of faults are what they claim: a disk without a free block, ports that say nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spatial.media import numbered, read, reasons
from workbench.lab.fault_places import SmallDisk, StoreProcess
from workbench.spatial.hierarchy.object_store import ObjectStore
from workbench.spatial.hierarchy.shared_store import SharedStoreClient


def test_a_small_disk_is_filled_and_emptied(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "objects", mib=8)
    assert disk.why_not() == "not mounted"
    with disk.mounted():
        if why := disk.why_not():
            assert why == "mounting a small disk needs root"
            pytest.skip(why)
        store = ObjectStore(str(disk.path))
        assert reasons(store.put([numbered(1)])) == [""]
        with disk.filled():
            assert reasons(store.put([numbered(2)])) == ["disk_full"]
            assert read(store, numbered(1)) == ""
        assert reasons(store.put([numbered(2)])) == [""]
        store.close(keep=True)
    assert list(disk.path.iterdir()) == [], "it is unmounted"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    tmp_path.chmod(0o700)
    process = StoreProcess(f"ipc://{tmp_path}/store", 8.0)
    with process.serving():
        yield process


@pytest.mark.parametrize("kind", ["killed", "refusing", "silent"])
def test_a_store_that_is_not_there_is_unreachable_until_it_is_back(
    store: StoreProcess, kind: str
) -> None:
    client = SharedStoreClient(store.address, timeout_s=0.5)
    put = numbered(1)
    assert reasons(client.put([put])) == [""] and read(client, put) == ""
    with getattr(store, kind)():
        started_s = time.monotonic()
        assert read(client, put) == "unreachable"
        assert reasons(client.put([put])) == ["unreachable"]
        assert time.monotonic() - started_s < 10.0, "each call ends"
        assert Path(store.address.removeprefix("ipc://")).exists() == (kind != "killed")
    for _ in range(100):
        if not reasons(client.put([put]))[0]:
            break
    assert read(client, put) == "", "the new store has what was put again"
    client.close(keep=False)
