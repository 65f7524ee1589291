import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.spatial.media import (
    CANARY,
    PAGE,
    key_of,
    numbered,
    page_of,
    private_key,
    put_of,
    read,
    reasons,
)  # fmt: skip
from tests.spatial.medium_contract import CAP, MediumContract, Open, closing, wait_for
from workbench.spatial.hierarchy import shared_store_protocol as protocol
from workbench.spatial.hierarchy.medium import Get, MediumFault
from workbench.spatial.hierarchy.record_header import encode_header, storage_name, total_bytes
from workbench.spatial.hierarchy.shared_store import SERVER_MODULE, SharedStoreClient
from workbench.spatial.hierarchy.shared_store_index import StoreIndex, StoreLimits
from workbench.spatial.hierarchy.shared_store_protocol import BLOCK

CAP_MIB = CAP / (1024 * 1024)
Serve = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("s")  # a short name: a socket's path takes 107 bytes
    path.chmod(0o700)
    return path


@pytest.fixture
def address(folder: Path) -> str:
    return f"ipc://{folder}/store"


@pytest.fixture
def serve(address: str) -> Iterator[Serve]:
    """Starts the real process and waits until it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def start(mib: float = CAP_MIB, **more: float) -> subprocess.Popen[bytes]:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
        command = [sys.executable, "-m", SERVER_MODULE, "--address", address, f"--mib={mib}"]
        running.append(subprocess.Popen([*command, *options], stderr=subprocess.PIPE))
        wait_for(lambda: answers(address))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def answers(address: str) -> bool:
    try:
        SharedStoreClient(address).close(keep=False)
    except MediumFault as fault:
        assert fault.reason == "unreachable"
        return False
    return True


class TestContract(MediumContract):
    @pytest.fixture
    def open_medium(self, serve: Serve, address: str) -> Iterator[Open]:
        serve()
        yield from closing(lambda: SharedStoreClient(address))


# ---- a private store


def test_a_private_store_starts_and_ends_with_its_client() -> None:
    client = SharedStoreClient("", 4 << 20)
    put = numbered(1)
    assert reasons(client.put([put])) == [""]
    assert read(client, put) == ""
    pid = client.pid
    assert client.place == "a store of this engine's own"
    assert client.resize(4 << 20) and not client.resize(8 << 20)
    usage = client.usage()
    assert usage is not None and usage.capacity_bytes == 4 << 20
    status = Path(f"/proc/{pid}/status").read_text()
    resident_kib = int(status.split("VmRSS:")[1].split()[0])
    assert resident_kib < 120_000, "the store's process has loaded the engine"
    client.close(keep=True)
    assert not Path(f"/proc/{pid}").exists()
    client.close(keep=True)
    assert reasons(client.put([put])) == ["closed"] and read(client, put) == "closed"


def test_a_private_store_dies_with_an_engine_that_is_killed() -> None:
    script = (
        "from workbench.spatial.hierarchy.shared_store import SharedStoreClient\n"
        "client = SharedStoreClient('', 1 << 20)\n"
        "print(client.pid, client._companion.folder, flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        assert engine.stdout is not None
        pid, folder = engine.stdout.readline().decode().split()
        assert Path(f"/proc/{pid}").exists() and Path(folder).exists()
        SharedStoreClient("", 1 << 20).close(keep=False)
        assert Path(folder).exists()  # its engine lives
        engine.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), 5)
    SharedStoreClient("", 1 << 20).close(keep=False)  # the next one tidies up
    assert not Path(folder).exists()


def test_a_private_store_that_was_killed_comes_back() -> None:
    client = SharedStoreClient("", 4 << 20, timeout_s=0.5)
    put = numbered(1)
    client.put([put])
    client._started_at_s -= 60  # it has run for a minute
    os.kill(client.pid, signal.SIGKILL)
    wait_for(lambda: client._companion is not None and not client._companion.alive)
    assert read(client, put) == "unreachable"
    wait_for(lambda: read(client, put) == "gone")
    assert reasons(client.put([put])) == [""]
    assert read(client, put) == ""
    client.close(keep=False)


# ---- killed and started again


def test_a_killed_store_is_unreachable_at_once_and_a_new_one_works(
    serve: Serve, address: str
) -> None:
    process = serve()
    client = SharedStoreClient(address, timeout_s=1.0)
    put = numbered(1)
    client.put([put])
    process.kill()
    process.wait()
    for _ in range(2):
        start = time.monotonic()
        assert reasons(client.put([numbered(2), numbered(3)])) == ["unreachable"] * 2
        assert read(client, put) == "unreachable"
        assert client.probe([key_of(1)]) == [None]
        assert client.prestage([key_of(1)]) == [False]
        assert reasons(client.remove([key_of(1)])) == ["unreachable"]
        assert list(client.scan()) == [] and client.real_bytes == 0 and client.usage() is None
        assert time.monotonic() - start < 4.0
    serve()  # at the same address, with the socket of the dead one still lying there
    assert read(client, put) == "gone"  # nothing is durable
    assert reasons(client.put([put])) == [""]
    assert read(client, put) == ""
    client.close(keep=False)


@pytest.mark.timeout(20)
def test_a_store_that_goes_between_the_look_and_the_call_is_unreachable(
    serve: Serve, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = serve()
    client = SharedStoreClient(address, timeout_s=1.0)
    client.put([numbered(1)])
    process.kill()
    process.wait()
    assert reasons(client.put([numbered(2)])) == ["unreachable"]  # the connection has ended
    poll = zmq.Socket.poll

    def late(link: "zmq.Socket[bytes]", timeout: int, events: int = zmq.POLLIN) -> int:
        return poll(link, timeout, events) or events & zmq.POLLOUT

    monkeypatch.setattr(zmq.Socket, "poll", late)
    assert reasons(client.put([numbered(2)])) == ["unreachable"]
    client.close(keep=False)


def test_a_store_that_hangs_is_unreachable_within_the_time_limit(
    serve: Serve, address: str
) -> None:
    process = serve()
    client = SharedStoreClient(address, timeout_s=0.3)
    put = numbered(1)
    client.put([put])
    process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    assert read(client, put) == "unreachable"
    assert time.monotonic() - start < 1.0
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: read(client, put) == "")  # late answers to the calls given up do not confuse
    client.close(keep=False)


@pytest.mark.parametrize("phase", ["put", "get"])
def test_killed_in_the_middle_of_a_transfer(serve: Serve, address: str, phase: str) -> None:
    process = serve(16)
    copied = 0

    def pace(num_bytes: int) -> None:
        nonlocal copied
        copied += 1
        if copied == kill_at:
            process.kill()
            process.wait()

    kill_at = 0
    client = SharedStoreClient(address, pace=pace)
    puts = [numbered(number, 1 << 20) for number in range(4)]
    if phase == "put":
        kill_at = 3
        done = reasons(client.put(puts))
        assert done == ["unreachable"] * 4
    else:
        client.put(puts)
        kill_at = copied + 2
        out = np.full((4, 1 << 20), CANARY, dtype=np.uint8)
        done = reasons(client.get([Get(p.record, 0, out[i]) for i, p in enumerate(puts)]))
        # The mapping outlives the process, so what was leased is still whole.
        assert done == [""] * 4
        assert (out == np.stack([put.payload for put in puts])).all()
    serve(16)
    assert [read(client, put) for put in puts] == ["gone"] * 4
    assert reasons(client.put(puts)) == [""] * 4
    assert [read(client, put) for put in puts] == [""] * 4
    client.close(keep=False)


def test_restarted_between_allocate_and_commit(serve: Serve, address: str) -> None:
    """The new store's memory is not written with offsets that the old one gave."""
    process = serve(16)
    other: list[SharedStoreClient] = []

    def pace(num_bytes: int) -> None:
        nonlocal process
        if not other:
            process.kill()
            process.wait()
            process = serve(16)
            other.append(SharedStoreClient(address))
            assert reasons(other[0].put([theirs])) == [""]
            client.prestage([key_of(1)])  # as another thread might: the client greets the new one

    theirs, mine = numbered(2, 1 << 20), numbered(1, 1 << 20)
    client = SharedStoreClient(address, pace=pace)
    assert reasons(client.put([mine])) == ["expired"]
    assert read(other[0], theirs) == ""
    client.close(keep=False)
    other[0].close(keep=False)


# ---- leases, time to live, two phases


def test_a_lease_of_a_millisecond_and_a_slow_copy(serve: Serve, address: str) -> None:
    serve(4)
    writer = SharedStoreClient(address)
    put = numbered(1, 1 << 20)
    writer.put([put])
    pages = iter(range(100, 1000))
    seen: list[int] = []

    def pace(num_bytes: int) -> None:
        seen.append(writer.usage().num_leased)  # type: ignore[union-attr]
        time.sleep(0.02)
        for _ in range(8):  # the store is full several times over while the reader copies
            assert reasons(writer.put([numbered(next(pages), 1 << 20)])) == [""]

    reader = SharedStoreClient(address, lease_ms=1, pace=pace)
    assert read(reader, put) == "expired"
    patient = SharedStoreClient(address, lease_ms=5000, pace=pace)
    put = numbered(2, 1 << 20)
    writer.put([put])
    seen.clear()
    assert read(patient, put) == ""  # its page cannot go before the lease ends
    assert set(seen) == {1}
    usage = writer.usage()
    assert usage is not None and usage.num_evicted >= 8
    wait_for(lambda: writer.usage().num_leased == 0, 3)  # type: ignore[union-attr]
    for client in (writer, reader, patient):
        client.close(keep=False)


def test_the_lease_is_looked_at_after_the_copy_too(
    serve: Serve, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve()
    client = SharedStoreClient(address, lease_ms=150)
    put = numbered(1)
    client.put([put])
    slow = client._clock.now_s
    calls = 0

    def now_s() -> float:
        nonlocal calls
        calls += 1
        if calls == 3:  # start, before the copy, then after it
            time.sleep(0.2)
        return slow()

    monkeypatch.setattr(client._clock, "now_s", now_s)
    assert read(client, put) == "expired"
    client.close(keep=False)


def test_pages_expire(serve: Serve, address: str) -> None:
    serve(ttl_s=0.5)
    client = SharedStoreClient(address)
    kept, lost = numbered(1), numbered(2)
    client.put([kept, lost])
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        assert client.prestage([kept.record.key]) == [True]
        time.sleep(0.05)
    assert [read(client, put) for put in (kept, lost)] == ["", "gone"]
    wait_for(lambda: client.real_bytes == 0, 3)
    usage = client.usage()
    assert usage is not None and usage.num_expired >= 2 and usage.used_bytes == 0
    client.close(keep=False)


def test_prestaged_pages_are_not_evicted(serve: Serve, address: str) -> None:
    serve()
    client = SharedStoreClient(address)
    first = numbered(0, 4 * PAGE)
    client.put([first])
    assert client.prestage([first.record.key, key_of(99)], hold_s=10) == [True, False]
    usage = client.usage()
    assert usage is not None and usage.num_held == 1
    for number in range(1, 80):
        assert reasons(client.put([numbered(number, 4 * PAGE)])) == [""]
    assert read(client, first) == ""
    assert read(client, numbered(1, 4 * PAGE)) == "gone"
    client.close(keep=False)


def test_a_put_that_takes_too_long_is_discarded(serve: Serve, address: str) -> None:
    serve(put_timeout_s=0.2, quarantine_s=0.6)
    client = SharedStoreClient(address, pace=lambda num_bytes: time.sleep(0.3))
    put = numbered(1)
    assert reasons(client.put([put])) == ["expired"]
    other = SharedStoreClient(address)
    assert other.probe([key_of(1)]) == [None]
    usage = other.usage()
    assert usage is not None and usage.used_bytes == 0  # the client said that it had stopped
    client.close(keep=False)
    other.close(keep=False)


def test_a_client_that_dies_while_it_writes(serve: Serve, address: str) -> None:
    serve(put_timeout_s=0.2, quarantine_s=0.4)
    script = (
        "import os, sys\nsys.path.insert(0, '.')\n"
        "from tests.spatial.media import numbered\n"
        "from workbench.spatial.hierarchy.shared_store import SharedStoreClient\n"
        f"client = SharedStoreClient({address!r}, pace=lambda n: os.kill(os.getpid(), 9))\n"
        "client.put([numbered(1)])"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    client = SharedStoreClient(address)
    assert client.probe([key_of(1)]) == [None]
    wait_for(lambda: (client.usage() or usage_of_nothing()).used_bytes == 0, 3)
    assert reasons(client.put([numbered(1)])) == [""]
    client.close(keep=False)


def usage_of_nothing() -> protocol.Usage:
    return protocol.Usage(1, 1, 1, 0, 0, 0)


def test_threads_of_two_clients_hammer_one_small_store(serve: Serve, address: str) -> None:
    serve(2)
    failures: list[BaseException] = []
    hits = [0, 0, 0]

    def run(index: int) -> None:
        client = SharedStoreClient(address)
        rng = np.random.default_rng(index)
        try:
            for _ in range(300):
                put = numbered(int(rng.integers(40)))
                if rng.random() < 0.5:
                    assert reasons(client.put([put])) == [""]
                elif rng.random() < 0.1:
                    client.remove([put.record.key])
                else:
                    reason = read(client, put)  # compares every byte
                    assert reason in ("", "gone")
                    hits[index] += reason == ""
        except BaseException as error:
            failures.append(error)
        finally:
            client.close(keep=False)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and min(hits) > 10


# ---- who answers


def test_nobody_answers(address: str) -> None:
    start = time.monotonic()
    with pytest.raises(MediumFault, match=f"no shared store answers at {address}: start one"):
        SharedStoreClient(address)
    assert time.monotonic() - start < 2


def test_a_foreign_process_at_the_address(folder: Path, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/store")
        listener.listen()
        with pytest.raises(MediumFault, match="is no shared store of this workbench") as caught:
            SharedStoreClient(address, timeout_s=0.3)
    assert caught.value.reason == "foreign"


@pytest.mark.parametrize("reply", [[b"hello"], [protocol.prefix(), b"\xc1"], [b"", b"", b""]])
def test_a_foreign_zeromq_process(address: str, reply: list[bytes]) -> None:
    with zmq_peer(address, reply), pytest.raises(MediumFault) as caught:
        SharedStoreClient(address, timeout_s=0.5)
    assert caught.value.reason == "foreign"


def test_a_store_of_another_version(
    serve: Serve, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve()
    monkeypatch.setattr(protocol, "VERSION", protocol.VERSION + 1)
    with pytest.raises(MediumFault, match="speaks version 1, this workbench version 2: start both"):
        SharedStoreClient(address)


class zmq_peer:
    """A ROUTER that answers everything with the same frames."""

    def __init__(self, address: str, reply: list[bytes]) -> None:
        self.address, self.reply = address, reply
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.bind(self.address)
            while not self.done.is_set():
                if router.poll(20):
                    router.send_multipart([router.recv_multipart()[0], *self.reply])

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


def test_the_store_survives_garbage(serve: Serve, address: str) -> None:
    process = serve()
    rng = np.random.default_rng(0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(address)
        for size in (0, 1, 6, 100, 10_000):
            dealer.send(rng.bytes(size))
            dealer.send_multipart([protocol.prefix(), rng.bytes(size)])
            dealer.send_multipart([protocol.prefix()] + [rng.bytes(size)] * 3)
        dealer.recv_multipart()
    client = SharedStoreClient(address)
    with pytest.raises(MediumFault, match="malformed"):
        client._link.call(protocol.Allocate([b"x"], [], []), list)
    bad = protocol.Allocate([b"x"] * 3, [0, -5, 1 << 60], [False] * 3)
    assert [slot.reason for slot in client._link.call(bad, list[protocol.Slot])] == [
        "too_large"
    ] * 3
    assert client._link.call(protocol.Commit([77], [True]), list[str]) == ["expired"]
    assert process.poll() is None
    assert reasons(client.put([numbered(1)])) == [""]
    client.close(keep=False)


def test_two_stores_at_one_address(serve: Serve, address: str) -> None:
    serve()
    second = subprocess.run(
        [sys.executable, "-m", SERVER_MODULE, "--address", address, "--mib", "1"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert second.returncode == 2
    assert second.stderr.strip().endswith("somebody serves this address already")
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("given_address", "sentence"),
    [
        ("tcp://10.0.0.7:5000", "of this machine"),
        ("tcp://0.0.0.0:5000", "of this machine"),
        ("tcp://localhost", "of this machine"),
        ("ipc://relative", "absolute path"),
        ("ipc:///" + "x" * 200, "at most 100 bytes"),
        ("tcp://me:hush@127.0.0.1:1", "holds no user or password"),
        ("http://127.0.0.1:1", "give ipc:///path"),
    ],
)
def test_addresses_refused(given_address: str, sentence: str) -> None:
    with pytest.raises(MediumFault, match=sentence) as caught:
        SharedStoreClient(given_address)
    assert "hush" not in str(caught.value)


def test_over_a_loopback_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    at = f"tcp://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", SERVER_MODULE, "--address", at, "--mib", "1"])
    try:
        wait_for(lambda: answers(at))
        client = SharedStoreClient(at)
        assert reasons(client.put([numbered(1)])) == [""]
        assert read(client, numbered(1)) == ""
        client.close(keep=False)
    finally:
        process.terminate()
        assert process.wait(5) == 0


def test_the_folder_of_the_socket_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    refused = subprocess.run(
        [sys.executable, "-m", SERVER_MODULE, "--address", f"ipc://{tmp_path}/s", "--mib", "1"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode == 2 and "mode 0700" in refused.stderr


def test_the_command(folder: Path) -> None:
    at = f"ipc://{folder}/new/store"
    workbench = Path(sys.executable).with_name("workbench")
    process = subprocess.Popen([workbench, "store", "serve", "--address", at, "--mib", "2"])
    try:
        wait_for(lambda: answers(at))
        assert (folder / "new").stat().st_mode & 0o777 == 0o700
        assert (folder / "new" / "store").stat().st_mode & 0o077 == 0
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
    refused = subprocess.run(
        [workbench, "store", "serve", "--address", "tcp://10.0.0.7:5000"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode == 2 and refused.stdout == ""
    assert "on another one" in refused.stderr and "Traceback" not in refused.stderr


# ---- the index alone


Step = st.tuples(
    st.sampled_from(["put", "get", "remove", "release", "wait", "prestage", "bye"]),
    st.integers(0, 5),
    st.integers(1, 9),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(Step, max_size=60))
def test_every_block_has_one_user_and_leased_blocks_stay(steps: list[tuple[str, int, int]]) -> None:
    """Random operations on a store of 16 blocks; a lease's blocks are never given to a writer."""
    headers: dict[int, bytes] = {}
    limits = StoreLimits(ttl_s=40, lease_s=10, put_timeout_s=5, quarantine_s=20)
    index = StoreIndex(16, limits, lambda runs: headers[runs[0][0]])
    owner, now_s = b"o" * 16, 0.0
    leases: list[tuple[float, set[int]]] = []
    for kind, number, size in steps:
        key = private_key(index=number) if number == 0 else key_of(number)
        name = storage_name(key, owner)
        if kind == "put":
            put = put_of(key, page_of(number, size * BLOCK - 1024), 1)
            slot = index.allocate(name, total_bytes(put.record), number == 0, owner, now_s)
            if not slot.reason:
                given_blocks = blocks_of(slot.runs)
                for until_s, leased in leases:
                    assert until_s <= now_s or not (leased & given_blocks)
                headers[slot.runs[0][0]] = encode_header(put.record)
                if size % 4:  # else the writer has died
                    index.commit(slot.ticket, size % 3 != 0, owner, now_s)
        elif kind == "get":
            lease = index.acquire(name, size, now_s)
            if not lease.reason:
                assert lease.header[:8] == b"KVWBREC\0"
                leases.append((now_s + size, blocks_of(lease.runs)))
        elif kind == "remove":
            index.remove(name)
        elif kind == "prestage":
            index.prestage(name, size, now_s)
        elif kind == "bye":
            index.forget_owner(owner)
        else:
            now_s += size
            index.sweep(now_s)
        index.check()
    index.forget_owner(owner)
    index.sweep(now_s + 1000)
    index.check()
    assert index.usage(owner, now_s).used_bytes == 0


def test_removed_pages_make_room_at_once_and_leased_ones_do_not() -> None:
    owner, put = b"o" * 16, numbered(1, 3 * BLOCK)
    index = StoreIndex(4, StoreLimits(), lambda runs: encode_header(put.record))
    name = storage_name(put.record.key, owner)

    def store() -> str:
        slot = index.allocate(name, total_bytes(put.record), False, owner, 0.0)
        return slot.reason or index.commit(slot.ticket, True, owner, 0.0)

    assert store() == ""
    assert index.remove(name) and store() == ""  # no sweep in between
    lease = index.acquire(name, 3.0, 0.0)
    assert index.remove(name) and store() == "full"
    assert index.acquire(name, 3.0, 0.0).reason == "gone"
    index.release(lease.ticket)
    assert store() == ""
    assert index.allocate(b"n" * 32, 5 * BLOCK, False, owner, 0.0).reason == "too_large"


def blocks_of(runs: protocol.Runs) -> set[int]:
    return {block for start, count in runs for block in range(start, start + count)}
