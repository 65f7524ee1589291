"""A shared store reached through NIXL's UCX: its guarantees hold for one-sided transfers too."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
import psutil
import pytest

from tests.spatial.conftest import Harness
from tests.spatial.media import (
    CANARY,
    PAGE,
    key_of,
    numbered,
    read,
    reasons,
)  # fmt: skip
from tests.spatial.medium_contract import MediumContract, Open, closing, wait_for
from tests.spatial.test_disk_transports import HAS_NIXL, needs_nixl
from tests.spatial.test_shared_store import (
    Serve,
    address,
    folder,
    serve,
)  # fmt: skip
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.engine.views.tier_report import medium_name
from workbench.errors import TierError
from workbench.spatial.hierarchy import shared_store_protocol as protocol
from workbench.spatial.hierarchy.medium import Get, MediumFault, encode_key
from workbench.spatial.hierarchy.record_header import header_bytes
from workbench.spatial.hierarchy.shared_store import SERVER_MODULE, SharedStoreClient
from workbench.spatial.hierarchy.shared_store_arena import spans_of
from workbench.spatial.hierarchy.shared_store_protocol import BLOCK, Lease, Welcome
from workbench.spatial.hierarchy.shared_store_remote import RemoteArena

__all__ = ["address", "folder", "serve"]  # fixtures
MIB = 1024 * 1024
Test = TypeVar("Test", bound=Callable[..., None] | type)


def nixl_only(test: Test) -> Test:
    """Of a test or a class of them: long, and only where NIXL is installed."""
    for mark in needs_nixl:
        test = mark(test)
    return test


@pytest.fixture
def offer(serve: Serve) -> Serve:
    """Starts a store that offers its memory to NIXL, and waits until it answers."""
    return partial(serve, transport="nixl")


@pytest.fixture
def tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX by TCP, where a transfer can be under way when its time is up."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")


@nixl_only
class TestContract(MediumContract):
    @pytest.fixture
    def open_medium(self, offer: Serve, address: str) -> Iterator[Open]:
        offer()
        yield from closing(lambda: SharedStoreClient(address, transport="nixl"))


@nixl_only
def test_what_one_transport_wrote_the_other_reads(offer: Serve, address: str) -> None:
    """A client that maps the memory and one that does not, at one store."""
    offer(16)
    one, two = SharedStoreClient(address), SharedStoreClient(address, transport="nixl")
    assert (one.way, two.way) == ("shared memory", "NIXL UCX")
    puts = [numbered(1, 3 * MIB + 5), numbered(2, 8), numbered(3, 300_000)]
    assert reasons(one.put(puts[:1]) + two.put(puts[1:])) == [""] * 3
    for client in (one, two):
        assert [read(client, put) for put in puts] == [""] * 3
        assert read(client, puts[0], MIB - 7, MIB + 14) == ""
        client.close(keep=False)


@nixl_only
@pytest.mark.parametrize("phase", ["put", "get"])
def test_killed_in_the_middle_of_a_transfer(offer: Serve, address: str, phase: str) -> None:
    process = offer(16)
    copied = 0

    def pace(num_bytes: int) -> None:
        nonlocal copied
        copied += 1
        if copied == kill_at:
            process.kill()
            process.wait()

    kill_at = 0
    client = SharedStoreClient(address, pace=pace, transport="nixl")
    puts = [numbered(number, MIB) for number in range(4)]
    if phase == "put":
        kill_at = 3
        assert reasons(client.put(puts)) == ["unreachable"] * 4
    else:
        assert reasons(client.put(puts)) == [""] * 4
        kill_at = copied + 2
        out = np.full((4, MIB), CANARY, dtype=np.uint8)
        done = reasons(client.get([Get(p.record, 0, out[i]) for i, p in enumerate(puts)]))
        assert done == ["", "unreachable", "unreachable", "unreachable"]
        assert (out[0] == puts[0].payload).all() and (out[1:] == CANARY).all()
    offer(16)
    assert [read(client, put) for put in puts] == ["gone"] * 4  # greets the new one
    assert reasons(client.put(puts)) == [""] * 4
    assert [read(client, put) for put in puts] == [""] * 4
    client.close(keep=False)


@nixl_only
def test_a_lease_that_ends_during_a_slow_copy(offer: Serve, address: str) -> None:
    offer(4)
    writer = SharedStoreClient(address, transport="nixl")
    put = numbered(1, MIB)
    writer.put([put])
    pages = iter(range(100, 1000))

    def pace(num_bytes: int) -> None:
        time.sleep(0.02)
        for _ in range(8):  # the store is full several times over while the reader copies
            assert reasons(writer.put([numbered(next(pages), MIB)])) == [""]

    reader = SharedStoreClient(address, lease_ms=1, pace=pace, transport="nixl")
    assert read(reader, put) == "expired"
    patient = SharedStoreClient(address, lease_ms=5000, pace=pace, transport="nixl")
    put = numbered(2, MIB)
    writer.put([put])
    assert read(patient, put) == ""  # its page cannot go before the lease ends
    for client in (writer, reader, patient):
        client.close(keep=False)


@nixl_only
def test_a_put_that_takes_too_long_is_discarded(offer: Serve, address: str) -> None:
    offer(put_timeout_s=0.3, quarantine_s=0.6)
    slow = SharedStoreClient(address, pace=lambda num_bytes: time.sleep(0.4), transport="nixl")
    assert reasons(slow.put([numbered(1)])) == ["expired"]
    other = SharedStoreClient(address, transport="nixl")
    assert other.probe([key_of(1)]) == [None]
    usage = other.usage()
    assert usage is not None and usage.used_bytes == 0  # no transfer was under way: told so
    assert reasons(slow.put([])) == []
    slow.close(keep=False)
    other.close(keep=False)


@nixl_only
def test_a_write_given_up_on_its_way_lands_in_nobodys_room(
    offer: Serve, address: str, tcp: None
) -> None:
    offer(4, put_timeout_s=4.0, quarantine_s=4.0)
    in_a_process(give_up_a_write, address)
    other = SharedStoreClient(address)
    puts = [numbered(number, MIB) for number in (2, 3)]
    wait_for(lambda: reasons(other.put(puts)) == ["", ""], 30)
    assert [read(other, put) for put in puts] == ["", ""]
    assert other.probe([key_of(1)]) == [None]
    other.close(keep=False)


def give_up_a_write(address: str) -> None:
    other, client = SharedStoreClient(address), SharedStoreClient(address, transport="nixl")
    in_its_course(client)
    assert reasons(client.put([numbered(1, 2 * MIB)])) == ["expired"]
    usage = other.usage()
    assert usage is not None and usage.used_bytes > 2 * MIB, "its room was given back at once"
    assert "full" in reasons(other.put([numbered(number, MIB) for number in (2, 3)]))


@nixl_only
def test_a_read_given_up_on_its_way_touches_nothing(offer: Serve, address: str, tcp: None) -> None:
    offer(16)
    writer = SharedStoreClient(address)
    assert reasons(writer.put([numbered(1, 2 * MIB)])) == [""]
    in_a_process(give_up_a_read, address)
    writer.close(keep=False)


def give_up_a_read(address: str) -> None:
    client = SharedStoreClient(address, transport="nixl")
    arena, out = client._link.arena, np.full(2 * MIB, CANARY, dtype=np.uint8)
    put, resume = numbered(1, 2 * MIB), in_its_course(client)
    assert reasons(client.get([Get(put.record, 0, out)])) == ["expired"]
    assert arena.lost and not arena.load(0, out, lambda: True)
    assert not arena.save(BLOCK, out[:BLOCK], lambda: True)
    resume()
    wait_for(lambda: read(client, put) == "")  # with a new agent
    assert (out == CANARY).all()


def in_its_course(client: SharedStoreClient) -> Callable[[], None]:
    """Let the time of a call be over once its first transfer is under way; undone by the answer.

    The clock is looked at as the call starts, before the transfer, and while it moves.
    """
    real, calls = client._clock.now_s, iter(range(10**6))
    client._clock.now_s = lambda: real() + (3600.0 if next(calls) > 1 else 0.0)

    def resume() -> None:
        client._clock.now_s = real

    return resume


def in_a_process(run: Callable[..., None], *given: object) -> None:
    """Run in a process of its own, which keeps UCX by TCP out of this one."""
    process = multiprocessing.get_context("spawn").Process(target=run, args=given)
    process.start()
    process.join()
    assert process.exitcode == 0


def late_write(client: SharedStoreClient, address: str, key: bytes, header: int) -> None:
    """What a writer does that was stopped for longer than the quarantine between clock and write.

    The room is another's by then: the payload of the page of `key`.
    """
    (lease,) = client._call(protocol.Acquire(client._names([key]), 1), list[Lease])
    stopped = SharedStoreClient(address, transport="nixl")
    ((at, size),) = spans_of(lease.runs, header, 512, stopped._link.arena.num_bytes)
    assert stopped._link.arena.save(at, np.full(size, CANARY, np.uint8), lambda: True)
    stopped.close(keep=False)


@nixl_only
def test_a_write_that_lands_in_anothers_page_is_never_served(offer: Serve, address: str) -> None:
    offer(4)
    t = Harness(0, 0, RealClock(), shared="store", shared_address=address, shared_transport="nixl")
    for number in range(3):
        t.store(t.key(number))
        t.settle()
    store = t.h.mover.ladder.tiers[1].medium
    assert isinstance(store, SharedStoreClient)
    name = encode_key(t.key(1))
    record = store.probe([name])[0]
    assert record is not None
    late_write(store, address, name, header_bytes(record))
    assert t.load([t.key(0), t.key(1), t.key(2)]) == ["G3.5", "", "G3.5"]
    assert t.faults() == [("G3.5", "corrupt")]
    t.h.close()


@nixl_only
def test_threads_of_one_client_share_its_agent(offer: Serve, address: str) -> None:
    offer(8)
    client = SharedStoreClient(address, transport="nixl")
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            for number in range(60):
                put = numbered(1000 * index + number % 8, PAGE + 511 * index)
                assert reasons(client.put([put])) == [""]
                assert read(client, put) in ("", "gone")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    client.close(keep=False)


@nixl_only
def test_a_private_store_that_was_killed_comes_back() -> None:
    client = SharedStoreClient("", 8 * MIB, transport="nixl")
    put = numbered(1)
    assert client.way == "NIXL UCX" and reasons(client.put([put])) == [""]
    os.kill(client.pid, signal.SIGKILL)
    wait_for(lambda: read(client, put) == "unreachable")
    client._started_at_s = -1e9  # it may start anew at once
    wait_for(lambda: reasons(client.put([put])) == [""], 20)
    assert read(client, put) == ""
    client.close(keep=False)


@nixl_only
def test_the_transport_changes_live_and_is_named() -> None:
    t = Harness(2, 0, RealClock(), shared="store", shared_mib=8.0)
    for chosen in ("nixl", "direct", "nixl"):
        t.h.configure(TierSettings(**vars(t.settings) | {"shared_transport": chosen}))
        for number in range(6):
            t.store(t.key(number))
            t.settle()
        assert "G3.5" in t.load([t.key(number) for number in range(6)])
        stats = {tier.name: tier for tier in t.h.stats().tiers}["G3.5"]
        named = {"direct": ("shared memory", "shared store"),
                 "nixl": ("NIXL UCX", "shared store (NIXL)")}  # fmt: skip
        assert (stats.way, medium_name(stats)) == named[chosen]
    t.h.check_integrity(strict=True)
    t.h.close()


@nixl_only
def test_a_process_that_used_it_ends_well() -> None:
    """And leaves standard output alone, where `workbench bench --json` prints one object."""
    script = (
        "from workbench.spatial.hierarchy.shared_store import SharedStoreClient\n"
        "client = SharedStoreClient('', 1 << 22, transport='nixl')\n"
        "print(client.way)\nclient.close(False)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"NIXL UCX\n", b"")


@nixl_only
def test_nobody_listens_at_a_port(offer: Serve, address: str) -> None:
    process = offer()
    client = SharedStoreClient(address, transport="nixl")
    before = listeners(os.getpid())
    assert reasons(client.put([numbered(1)])) == [""]
    assert listeners(process.pid) == [] and listeners(os.getpid()) == before
    client.close(keep=False)


def listeners(pid: int) -> list[str]:
    links = psutil.Process(pid).net_connections("inet")
    return [link.laddr.ip for link in links if link.status == psutil.CONN_LISTEN]


# ---- without the package, and stores that do not offer it


@pytest.mark.skipif(HAS_NIXL, reason="NIXL is installed")
def test_it_says_what_is_missing_and_nothing_changes(address: str) -> None:
    t = Harness(0, 0, RealClock(), shared="store", shared_mib=8.0)
    t.store(t.key(0))
    t.settle()
    why = r"the shared tier cannot be opened: NIXL is not installed: run pip install 'kv-workbench"
    with pytest.raises(TierError, match=why):
        t.h.configure(TierSettings(**vars(t.settings) | {"shared_transport": "nixl"}))
    assert t.load([t.key(0)]) == ["G3.5"]
    t.h.close()
    command = [sys.executable, "-m", SERVER_MODULE, "--address", address, "--mib=1"]
    done = subprocess.run([*command, "--transport=nixl"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("NIXL is not installed: run pip")
    assert len(done.stderr.splitlines()) == 1


@nixl_only
def test_a_store_without_it_says_how_to_start_one(serve: Serve, address: str) -> None:
    serve()
    with pytest.raises(MediumFault, match=r"was started without NIXL: start it with `workbench"):
        SharedStoreClient(address, transport="nixl")
    SharedStoreClient(address).close(keep=False)


def welcome_of(nixl: bytes) -> Welcome:
    return Welcome(pid=2**30, fd=0, arena=1, arena_bytes=BLOCK, lease_ms=1, put_timeout_ms=1,
                   nixl=nixl)  # fmt: skip


@nixl_only
def test_metadata_of_something_else(address: str) -> None:
    with pytest.raises(MediumFault, match="NIXL knows no such agent") as caught:
        RemoteArena.attach(welcome_of(b"a picture of a cat"), time.monotonic)
    assert caught.value.reason == "foreign"


@nixl_only
def test_another_arena_than_the_one_told_of(offer: Serve, address: str) -> None:
    offer()
    client = SharedStoreClient(address, transport="nixl")
    told = client._link.welcome
    other = Welcome(**{name: getattr(told, name) for name in told.__struct_fields__} | {"arena": 3})
    with pytest.raises(MediumFault, match="is not that of a shared store"):
        RemoteArena.attach(other, time.monotonic)
    client.close(keep=False)
