"""A pool on a real Mooncake Store where it is installed; one sentence where it is not."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.spatial.conftest import Harness
from tests.spatial.media import (
    CANARY,
    PAGE,
    key_of,
    numbered,
    page_of,
    put_of,
    read,
    reasons,
)  # fmt: skip
from tests.spatial.medium_contract import MediumContract, Open, closing, wait_for
from tests.spatial.test_disk_transports import installed
from workbench.clock import RealClock
from workbench.errors import SettingError, TierError
from workbench.settings.tiers import TierSettings
from workbench.spatial.hierarchy.medium import Get, MediumFault
from workbench.spatial.hierarchy.mooncake_library import MasterAddress, parse_address
from workbench.spatial.hierarchy.mooncake_link import LEAST_BYTES
from workbench.spatial.hierarchy.mooncake_pool import MooncakePool

HERE = installed("mooncake")
real = pytest.mark.skipif(not HERE, reason="Mooncake is not installed")
absent = pytest.mark.skipif(HERE, reason="Mooncake is installed")


@pytest.fixture
def own() -> Iterator[MooncakePool]:
    """A pool with a master and a store of its own."""
    pool = MooncakePool("", LEAST_BYTES)
    yield pool
    pool.close(keep=False)


@pytest.fixture
def address(own: MooncakePool) -> str:
    """How others reach that store."""
    return f"mooncake://127.0.0.1:{own._link.master.port}?admin={own._link.master.admin_port}"


def children(pid: int) -> list[int]:
    """Ids of all processes below one."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


@real
@pytest.mark.long
class TestContract(MediumContract):
    most_pages = 64

    @pytest.fixture
    def open_medium(self, address: str) -> Iterator[Open]:
        yield from closing(lambda: MooncakePool(address))


@real
@pytest.mark.long
def test_a_private_store_ends_with_its_client() -> None:
    pool = MooncakePool("", LEAST_BYTES)
    put = numbered(1)
    assert reasons(pool.put([put])) == [""] and read(pool, put) == ""
    companion = pool._link.companion
    assert companion is not None and companion.process is not None
    below = [companion.process.pid, *children(companion.process.pid)]
    assert len(below) >= 3  # the store, the shell that watches, the master
    assert not pool.resize(2 * LEAST_BYTES) and pool.resize(LEAST_BYTES)
    pool.close(keep=True)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    assert not companion.folder.exists()


@real
@pytest.mark.long
def test_a_private_store_dies_with_an_engine_that_is_killed() -> None:
    script = (
        "from workbench.spatial.hierarchy.mooncake_pool import MooncakePool\n"
        f"pool = MooncakePool('', {LEAST_BYTES})\nprint('ready', flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        assert engine.stdout is not None
        assert b"ready\n" in iter(engine.stdout.readline, b"")
        below = children(engine.pid)
        assert below
        engine.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


@real
@pytest.mark.long
def test_a_killed_store_is_unreachable_then_empty(own: MooncakePool) -> None:
    puts = [numbered(number) for number in range(4)]
    assert reasons(own.put(puts)) == [""] * 4
    companion = own._link.companion
    assert companion is not None and companion.process is not None
    for pid in [companion.process.pid, *children(companion.process.pid)]:
        with contextlib.suppress(ProcessLookupError):  # it went with the one before
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not companion.alive)
    out = np.full(PAGE, CANARY, np.uint8)
    assert reasons(own.get([Get(puts[0].record, 0, out)])) in (["unreachable"], ["gone"])
    assert (out == CANARY).all()
    own._link.started_at_s -= 60  # it has run for a minute
    wait_for(lambda: reasons(own.put(puts[:1])) == [""], 60)
    assert [read(own, put) for put in puts] == ["", "gone", "gone", "gone"]


@real
@pytest.mark.long
def test_readers_while_the_store_evicts_never_read_a_wrong_byte(address: str) -> None:
    writer, reader = MooncakePool(address), MooncakePool(address)
    stop = threading.Event()
    outcomes: list[str] = []

    def hammer() -> None:
        while not stop.is_set():
            outcomes.extend(read(reader, numbered(number)) for number in range(0, 100, 7))

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _ in range(3):
            for number in range(100):  # more than the store holds
                writer.put([numbered(number, 4 * PAGE if number % 7 else PAGE)])
                if number % 5 == 0:
                    writer.remove([key_of(number - 7)] if number > 7 else [])
    finally:
        stop.set()
        thread.join()
        writer.close(keep=False)
        reader.close(keep=False)
    assert "" in outcomes and set(outcomes) <= {"", "gone", "changed", "truncated", "unreachable"}


@real
@pytest.mark.long
def test_a_page_larger_than_a_batch(own: MooncakePool) -> None:
    pool = MooncakePool("", 64 << 20)
    put = put_of(key_of(1), page_of(1, 20 << 20), 30)
    assert reasons(pool.put([put])) == [""]
    assert read(pool, put) == "" and read(pool, put, 12_345_678, 99) == ""
    assert reasons(own.put([put])) == ["full"]  # of 16 MiB
    pool.close(keep=False)


@real
@pytest.mark.long
def test_a_hierarchy_serves_hits_from_it_and_says_what_it_is() -> None:
    t = Harness(2, 0, RealClock(), shared="mooncake", shared_mib=16.0)
    for number in range(6):
        t.store(t.key(number))
        t.settle()
    assert t.load([t.key(0), t.key(1)]) == ["G3.5", "G3.5"]
    pool = next(tier for tier in t.h.stats().tiers if tier.name == "G3.5")
    assert (pool.kind, pool.way) == ("mooncake", "Mooncake over TCP")
    t.h.check_integrity(strict=True)
    t.h.close()


@real
@pytest.mark.long
def test_what_cannot_be_opened_says_why() -> None:
    with pytest.raises(MediumFault, match="a Mooncake Store of 1.0 MiB: give at least 16 MiB"):
        MooncakePool("", 1 << 20)
    with pytest.raises(MediumFault, match="mooncake://127.0.0.1:1 does not answer"):
        MooncakePool("mooncake://127.0.0.1:1")


@absent
def test_without_the_package_one_sentence_says_so() -> None:
    why = "the shared tier cannot be opened: Mooncake is not installed: run pip install"
    with pytest.raises(TierError, match=why):
        Harness(1, 0, RealClock(), shared="mooncake")


def test_addresses() -> None:
    assert parse_address("mooncake://127.0.0.1:50051") == MasterAddress("127.0.0.1", 50051)
    assert parse_address("mooncake://[::1]:7?admin=8") == MasterAddress("::1", 7, 8)
    assert MasterAddress("localhost", 1).local_name == "127.0.0.1"
    for wrong in ("127.0.0.1:50051", "http://127.0.0.1:1", "mooncake://host", "mooncake://h:99999",
                  "mooncake://h:1/path", "mooncake://h:1?admin=x"):  # fmt: skip
        with pytest.raises(MediumFault, match="give mooncake://host:port of its master"):
            parse_address(wrong)
    with pytest.raises(MediumFault, match="no user or password"):
        parse_address("mooncake://me:secret@host:1")
    with pytest.raises(SettingError, match="may hold no user or password"):
        TierSettings(shared_address="mooncake://me:secret@host:1")


@pytest.mark.long
@real
def test_a_pool_of_ones_own_is_unplugged_and_comes_back_empty(own: MooncakePool) -> None:
    put = numbered(1)
    assert reasons(own.put([put])) == [""] and own.can_unplug
    own.unplug()
    assert read(own, put) != "" and reasons(own.put([numbered(2)])) != [""]
    own.plug_in()
    wait_for(lambda: reasons(own.put([numbered(3)])) == [""], 60.0)
    assert own.probe([put.record.key]) == [None]
    shared = MooncakePool(f"mooncake://127.0.0.1:{own._link.master.port}", LEAST_BYTES)
    try:
        assert not shared.can_unplug
        shared.unplug()  # somebody else's is left alone
        assert reasons(own.put([numbered(4)])) == [""]
    finally:
        shared.close(keep=False)
