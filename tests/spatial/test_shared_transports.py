"""A shared store reached through NIXL's UCX: its guarantees hold for one-sided transfers too."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

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
    CAP_MIB,
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
marks = pytest.mark.parametrize("transport", [pytest.param("nixl", marks=needs_nixl)])
ways = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=needs_nixl) for way in ("shared memory", "TCP")]
)


@pytest.fixture
def place(way: str, address: str) -> str:
    """An address of the way's scheme: a socket's, or a port that was free a moment ago."""
    if way == "shared memory":
        return address
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def offer(place: str) -> Iterator[Serve]:
    """Starts a store that offers its memory to NIXL, and waits until it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def start(mib: float = CAP_MIB, **more: float) -> subprocess.Popen[bytes]:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
        command = [sys.executable, "-m", SERVER_MODULE, "--address", place, f"--mib={mib}"]
        running.append(subprocess.Popen([*command, *options, "--transport=nixl"]))
        wait_for(lambda: answers(place))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def answers(place: str) -> bool:
    try:
        SharedStoreClient(place).close(keep=False)
    except MediumFault as fault:
        assert fault.reason == "unreachable"
        return False
    return True


@ways
class TestContract(MediumContract):
    @pytest.fixture
    def open_medium(self, offer: Serve, place: str) -> Iterator[Open]:
        offer()
        yield from closing(lambda: SharedStoreClient(place, transport="nixl"))


@ways
def test_what_one_transport_wrote_the_other_reads(offer: Serve, place: str) -> None:
    """A client that maps the memory and one that does not, at one store."""
    offer(16)
    one, two = SharedStoreClient(place), SharedStoreClient(place, transport="nixl")
    assert (one.way, two.way) == ("shared memory", "NIXL UCX")
    puts = [numbered(1, 3 * MIB + 5), numbered(2, 8), numbered(3, 300_000)]
    assert reasons(one.put(puts[:1]) + two.put(puts[1:])) == [""] * 3
    for client in (one, two):
        assert [read(client, put) for put in puts] == [""] * 3
        assert read(client, puts[0], MIB - 7, MIB + 14) == ""
        client.close(keep=False)


@ways
@pytest.mark.parametrize("phase", ["put", "get"])
def test_killed_in_the_middle_of_a_transfer(offer: Serve, place: str, phase: str) -> None:
    process = offer(16)
    copied = 0

    def pace(num_bytes: int) -> None:
        nonlocal copied
        copied += 1
        if copied == kill_at:
            process.kill()
            process.wait()

    kill_at = 0
    client = SharedStoreClient(place, pace=pace, transport="nixl")
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


@ways
def test_a_lease_that_ends_during_a_slow_copy(offer: Serve, place: str) -> None:
    offer(4)
    writer = SharedStoreClient(place, transport="nixl")
    put = numbered(1, MIB)
    writer.put([put])
    pages = iter(range(100, 1000))

    def pace(num_bytes: int) -> None:
        time.sleep(0.02)
        for _ in range(8):  # the store is full several times over while the reader copies
            assert reasons(writer.put([numbered(next(pages), MIB)])) == [""]

    reader = SharedStoreClient(place, lease_ms=1, pace=pace, transport="nixl")
    assert read(reader, put) == "expired"
    patient = SharedStoreClient(place, lease_ms=5000, pace=pace, transport="nixl")
    put = numbered(2, MIB)
    writer.put([put])
    assert read(patient, put) == ""  # its page cannot go before the lease ends
    for client in (writer, reader, patient):
        client.close(keep=False)


@ways
def test_a_put_that_takes_too_long_is_discarded(offer: Serve, place: str) -> None:
    offer(put_timeout_s=0.3, quarantine_s=0.6)
    slow = SharedStoreClient(place, pace=lambda num_bytes: time.sleep(0.4), transport="nixl")
    assert reasons(slow.put([numbered(1)])) == ["expired"]
    other = SharedStoreClient(place, transport="nixl")
    assert other.probe([key_of(1)]) == [None]
    usage = other.usage()
    assert usage is not None and usage.used_bytes == 0  # no transfer was under way: told so
    assert reasons(slow.put([])) == []
    slow.close(keep=False)
    other.close(keep=False)


@pytest.mark.parametrize("way", [pytest.param("TCP", marks=needs_nixl)])
def test_a_write_given_up_on_its_way_lands_in_nobodys_room(offer: Serve, place: str) -> None:
    """The store is stopped while it should take part: what was sent lands when it goes on."""
    process = offer(4, put_timeout_s=0.4, quarantine_s=6.0)
    sent = 0

    def pace(num_bytes: int) -> None:
        nonlocal sent
        sent += 1
        if sent == 2:  # the header is there, the payload's first MiB is not
            os.kill(process.pid, signal.SIGSTOP)

    client = SharedStoreClient(place, timeout_s=0.5, pace=pace, transport="nixl")
    given_up = numbered(1, 2 * MIB)
    assert reasons(client.put([given_up])) == ["unreachable"]
    os.kill(process.pid, signal.SIGCONT)
    other = SharedStoreClient(place, transport="nixl")
    puts = [numbered(number, MIB) for number in (2, 3)]
    assert other.probe([key_of(1)]) == [None]
    done = reasons(other.put(puts))
    assert "full" in done, "its room was given away while the bytes could still come"
    wait_for(lambda: reasons(other.put(puts)) == ["", ""])
    assert [read(other, put) for put in puts] == ["", ""]
    assert other.probe([key_of(1)]) == [None]
    assert reasons(client.put([numbered(4)])) == [""]  # with a new agent
    assert read(client, numbered(4)) == "" and read(client, puts[0]) == ""
    client.close(keep=False)
    other.close(keep=False)


@pytest.mark.parametrize("way", [pytest.param("TCP", marks=needs_nixl)])
def test_a_read_given_up_on_its_way_touches_nothing(offer: Serve, place: str) -> None:
    process = offer(16)
    put = numbered(1, 2 * MIB)
    SharedStoreClient(place).put([put])
    stopped = False

    def pace(num_bytes: int) -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            os.kill(process.pid, signal.SIGSTOP)

    client = SharedStoreClient(place, timeout_s=0.5, lease_ms=400, pace=pace, transport="nixl")
    out = np.full(2 * MIB, CANARY, dtype=np.uint8)
    assert reasons(client.get([Get(put.record, 0, out)])) == ["expired"]
    os.kill(process.pid, signal.SIGCONT)
    wait_for(lambda: read(client, put) == "")
    assert (out == CANARY).all()  # also of what came late
    client.close(keep=False)


def late_write(client: SharedStoreClient, place: str, key: bytes, header: int) -> None:
    """What a writer does that was stopped for longer than the quarantine between clock and write.

    The room is another's by then: the payload of the page of `key`.
    """
    (lease,) = client._call(protocol.Acquire(client._names([key]), 1), list[Lease])
    stopped = SharedStoreClient(place, transport="nixl")
    ((at, size),) = spans_of(lease.runs, header, 512, stopped._link.arena.num_bytes)
    assert stopped._link.arena.save(at, np.full(size, CANARY, np.uint8), lambda: True)
    stopped.close(keep=False)


@ways
def test_a_write_that_lands_in_anothers_page_is_never_served(offer: Serve, place: str) -> None:
    offer(4)
    t = Harness(0, 0, RealClock(), shared="store", shared_address=place, shared_transport="nixl")
    for number in range(3):
        t.store(t.key(number))
        t.settle()
    store = t.h.mover.ladder.tiers[1].medium
    assert isinstance(store, SharedStoreClient)
    name = encode_key(t.key(1))
    record = store.probe([name])[0]
    assert record is not None
    late_write(store, place, name, header_bytes(record))
    assert t.load([t.key(0), t.key(1), t.key(2)]) == ["G3.5", "", "G3.5"]
    assert t.faults() == [("G3.5", "corrupt")]
    t.h.close()


@ways
def test_threads_of_one_client_share_its_agent(offer: Serve, place: str) -> None:
    offer(8)
    client = SharedStoreClient(place, transport="nixl")
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


@marks
def test_a_private_store_that_was_killed_comes_back(transport: str) -> None:
    client = SharedStoreClient("", 8 * MIB, transport=transport)
    put = numbered(1)
    assert client.way == "NIXL UCX" and reasons(client.put([put])) == [""]
    os.kill(client.pid, signal.SIGKILL)
    wait_for(lambda: read(client, put) == "unreachable")
    client._started_at_s = -1e9  # it may start anew at once
    wait_for(lambda: reasons(client.put([put])) == [""], 20)
    assert read(client, put) == ""
    client.close(keep=False)


@marks
def test_the_transport_changes_live_and_is_named(transport: str) -> None:
    t = Harness(2, 0, RealClock(), shared="store", shared_mib=8.0)
    for chosen in (transport, "direct", transport):
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


@marks
def test_a_process_that_used_it_ends_well(transport: str) -> None:
    """And leaves standard output alone, where `workbench bench --json` prints one object."""
    script = (
        "from workbench.spatial.hierarchy.shared_store import SharedStoreClient\n"
        f"client = SharedStoreClient('', 1 << 22, transport={transport!r})\n"
        "print(client.way)\nclient.close(False)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"NIXL UCX\n", b"")


@ways
def test_ucx_listens_on_this_machine_alone(offer: Serve, place: str, way: str) -> None:
    """And not at all where a socket's folder keeps others out."""
    process = offer()
    client = SharedStoreClient(place, transport="nixl")
    client.put([numbered(1)])
    for pid in (process.pid, os.getpid()):
        links = psutil.Process(pid).net_connections("inet")
        heard = {link.laddr.ip for link in links if link.status == psutil.CONN_LISTEN}
        assert heard == ({"127.0.0.1"} if way == "TCP" else set())
    client.close(keep=False)


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


@marks
def test_a_store_without_it_says_how_to_start_one(
    serve: Serve, address: str, transport: str
) -> None:
    serve()
    with pytest.raises(MediumFault, match=r"was started without NIXL: start it with `workbench"):
        SharedStoreClient(address, transport=transport)
    SharedStoreClient(address).close(keep=False)


def welcome_of(nixl: bytes) -> Welcome:
    return Welcome(pid=2**30, fd=0, arena=1, arena_bytes=BLOCK, lease_ms=1, put_timeout_ms=1,
                   nixl=nixl)  # fmt: skip


def test_a_client_that_cannot_map_hears_of_the_other_way() -> None:
    from workbench.spatial.hierarchy.shared_store_arena import Arena

    with pytest.raises(MediumFault, match=r"in the same container, or choose the transport nixl$"):
        Arena.attach(welcome_of(b"something"))
    with pytest.raises(MediumFault, match=r"in the same container$"):
        Arena.attach(welcome_of(b""))


@marks
def test_metadata_of_something_else(transport: str, address: str) -> None:
    with pytest.raises(MediumFault, match="NIXL knows no such agent") as caught:
        RemoteArena.attach(welcome_of(b"a picture of a cat"), address, time.monotonic)
    assert caught.value.reason == "foreign"


@ways
def test_another_arena_than_the_one_told_of(offer: Serve, place: str) -> None:
    offer()
    client = SharedStoreClient(place, transport="nixl")
    told = client._link.welcome
    other = Welcome(**{name: getattr(told, name) for name in told.__struct_fields__} | {"arena": 3})
    with pytest.raises(MediumFault, match="is not that of a shared store"):
        RemoteArena.attach(other, place, time.monotonic)
    client.close(keep=False)
