import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import obstore
import pytest
import requests
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

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
from tests.spatial.medium_contract import CAP, MediumContract, Open, closing
from workbench.spatial.hierarchy.medium import Get, MediumFault
from workbench.spatial.hierarchy.object_address import SUBFOLDER, fault_reason, open_store
from workbench.spatial.hierarchy.object_store import ObjectStore
from workbench.spatial.hierarchy.record_header import MAGIC, encode_header, storage_name

SECRET = "hush-hush"


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh bucket, with its credentials and endpoint in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    name = f"bucket-{time.monotonic_ns()}"
    import boto3

    boto3.client("s3", endpoint_url=s3_server).create_bucket(Bucket=name)
    return f"s3://{name}/kv"


class TestFolder(MediumContract):
    @pytest.fixture
    def open_medium(self, tmp_path: Path) -> Iterator[Open]:
        yield from closing(lambda: ObjectStore(str(tmp_path), CAP))


class TestBucket(MediumContract):
    @pytest.fixture
    def open_medium(self, s3: str) -> Iterator[Open]:
        yield from closing(lambda: ObjectStore(s3, CAP))


def file_of(tmp_path: Path, number: int) -> Path:
    return tmp_path / SUBFOLDER / "pages-v1" / storage_name(key_of(number), b"").hex()


def test_a_later_process_finds_the_pages(tmp_path: Path) -> None:
    first = ObjectStore(str(tmp_path))
    puts = [numbered(number) for number in range(4)]
    for put in puts:
        first.put([put])
    first.put([put_of(private_key(), page_of(9))])
    first.close(keep=True)
    later = ObjectStore(f"file://{tmp_path}")
    found = dict(later.scan())
    assert list(found) == [put.record for put in puts]  # oldest first
    assert [read(later, put) for put in puts] == [""] * 4
    assert later.real_bytes == sum(found.values())
    later.close(keep=False)  # it has put none of them
    assert len(list(ObjectStore(str(tmp_path)).scan())) == 4


def test_without_keep_nothing_stays(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    store.put([numbered(1), numbered(2)])
    store.close(keep=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_partial_foreign_and_other_objects_are_passed_over(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    puts = [numbered(number) for number in range(6)]
    store.put(puts)
    file_of(tmp_path, 0).write_bytes(file_of(tmp_path, 0).read_bytes()[:-1000])  # partial
    file_of(tmp_path, 1).write_bytes(b"a picture of a cat" * 100)  # foreign
    data = bytearray(file_of(tmp_path, 2).read_bytes())
    data[8] = 99  # another version
    file_of(tmp_path, 2).write_bytes(data)
    data = bytearray(file_of(tmp_path, 3).read_bytes())
    data[40] ^= 1  # a flipped bit in the header
    file_of(tmp_path, 3).write_bytes(data)
    file_of(tmp_path, 4).write_bytes(file_of(tmp_path, 5).read_bytes())  # the page of another key
    (tmp_path / SUBFOLDER / "pages-v1" / "notes.txt").write_bytes(MAGIC)
    keys = [put.record.key for put in puts]
    assert [record.key for record, _ in store.scan()] == keys[5:]
    assert store.probe(keys) == [None] * 5 + [puts[5].record]
    words = [read(store, put) for put in puts]
    assert words == ["truncated", "truncated", "other_version", "corrupt", "changed", ""]
    # A broken object does not stand in the way for ever; one of another version is not ours.
    assert reasons(store.put(puts)) == ["", "", "other_version", "", "", ""]
    assert [read(store, put) for put in puts] == ["", "", "other_version", "", "", ""]


def test_a_file_deleted_between_lookup_and_read(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    put = numbered(1)
    store.put([put])
    file_of(tmp_path, 1).unlink()
    assert read(store, put) == "gone"
    assert read(store, put, 8192, 8192) == "gone"
    assert store.real_bytes == 0


def test_the_charge_covers_the_blocks_of_a_file(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    for number, size in enumerate((1, 4096, 4097, 65_536, 5_898_240)):
        put = put_of(key_of(number), page_of(number, size), 1)
        (done,) = store.put([put])
        assert size <= done.real_bytes <= store.charge_bytes(put.record)
        assert done.real_bytes == file_of(tmp_path, number).stat().st_blocks * 512


def test_a_folder_is_private_and_symlinks_are_refused(tmp_path: Path) -> None:
    ObjectStore(str(tmp_path / "a"))
    assert (tmp_path / "a" / SUBFOLDER).stat().st_mode & 0o777 == 0o700
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / SUBFOLDER).symlink_to(tmp_path)
    with pytest.raises(MediumFault, match="a folder that only you may write to"):
        ObjectStore(str(tmp_path / "b"))
    with pytest.raises(MediumFault, match=r"cannot use the folder .*\(File exists\)"):
        (tmp_path / "file").write_text("x")
        ObjectStore(str(tmp_path / "file"))


def test_a_folder_that_cannot_be_written_is_a_counted_reason(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    (tmp_path / SUBFOLDER / "pages-v1").write_text("a file where a folder should be")
    done = store.put([numbered(1)])
    assert reasons(done) != [""]
    assert read(store, numbered(1)) != ""


def test_private_pages_of_an_engine_that_died_go_after_a_day(tmp_path: Path) -> None:
    dead = ObjectStore(str(tmp_path))
    dead.put([put_of(private_key(), page_of(1)), numbered(1)])
    fresh = ObjectStore(str(tmp_path))
    assert fresh.real_bytes >= 2 * PAGE  # it may still live
    for path in (tmp_path / SUBFOLDER / "private-v1").rglob("*"):
        os.utime(path, (1, 1))
    later = ObjectStore(str(tmp_path))
    assert PAGE <= later.real_bytes <= PAGE + 4096


def test_two_threads_put_the_same_keys(tmp_path: Path) -> None:
    stores = [ObjectStore(str(tmp_path)), ObjectStore(str(tmp_path))]
    puts = [numbered(number) for number in range(40)]
    done: list[list[str]] = [[], []]

    def run(index: int) -> None:
        done[index] = reasons(stores[index].put(puts))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [[""] * 40] * 2
    assert [read(stores[0], put) for put in puts] == [""] * 40


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        (f"s3://user:{SECRET}@bucket/kv", "may not hold a user or password"),
        ("ftp://host/x", "give /folder, file:///folder or s3://bucket"),
        ("relative/folder", "give /folder"),
        ("s3://Bucket_/kv", "a bucket's name as S3 has it"),
        ("s3://bucket/kv", "needs credentials: set AWS_ACCESS_KEY_ID"),
    ],
)
def test_addresses_refused(address: str, sentence: str) -> None:
    with pytest.raises(MediumFault, match=sentence) as caught:
        open_store(address, {})
    assert SECRET not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "sentence"),
    [
        ("http://storage.example:9000", "has to be https"),
        (f"https://me:{SECRET}@storage.example", "may not hold a user or password"),
        ("storage", "has to be https"),
    ],
)
def test_endpoints_refused(endpoint: str, sentence: str) -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": endpoint,
    }  # fmt: skip
    with pytest.raises(MediumFault, match=sentence) as caught:
        open_store("s3://bucket/kv", environment)
    assert SECRET not in str(caught.value)


def test_a_bucket_that_is_not_there(s3: str) -> None:
    with pytest.raises(MediumFault, match="has no such bucket") as caught:
        ObjectStore("s3://no-such-bucket/kv")
    assert SECRET not in str(caught.value)


def test_credentials_that_are_refused(s3: str, s3_server: str) -> None:
    store = ObjectStore(s3)
    put = numbered(1)
    store.put([put])

    def accept(number: str) -> None:
        """From this many requests on the server looks at credentials, of which it knows none."""
        requests.post(f"{s3_server}/moto-api/reset-auth", data=number, timeout=5)

    accept("0")
    try:
        assert read(store, put) == "unauthorised"
        assert reasons(store.put([numbered(2)])) == ["unauthorised"]
        with pytest.raises(MediumFault, match="did not accept the credentials") as caught:
            ObjectStore(s3)
    finally:
        accept("inf")
    assert SECRET not in str(caught.value) and read(store, put) == ""


def test_an_endpoint_that_does_not_answer(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]  # bound, but nobody listens: refused
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        start = time.monotonic()
        with pytest.raises(MediumFault, match="does not answer") as caught:
            ObjectStore(s3)
        assert time.monotonic() - start < 10
    assert caught.value.reason == "unreachable"
    assert SECRET not in str(caught.value)


def test_an_address_in_a_fault_is_no_reason() -> None:
    told = "error sending request for url (http://127.0.0.1:41639/NoSuchBucket/quota)"
    assert fault_reason(OSError(told)) == "unreachable"
    refused = "Server returned non-2xx status code: 416 Range Not Satisfiable: <Error></Error>"
    assert fault_reason(OSError(f"http://127.0.0.1:80/x {refused}")) == "truncated"


def test_a_server_that_goes_away(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    store = ObjectStore(s3)  # moto keeps its buckets in the process, so it is there too
    put = numbered(1)
    assert reasons(store.put([put])) == [""]
    server.stop()
    assert read(store, put) == "unreachable"
    assert reasons(store.put([numbered(2)])) == ["unreachable"]
    assert store.probe([key_of(1)]) == [None]
    assert list(store.scan()) == []
    assert store.real_bytes >= PAGE  # as counted before
    again = ThreadedMotoServer("127.0.0.1", port)
    again.start()
    try:
        assert read(store, put) == ""
    finally:
        again.stop()


def test_pages_put_by_others_in_a_bucket(s3: str) -> None:
    store = ObjectStore(s3)
    put = numbered(1)
    raw = S3Store(s3.split("/")[2], client_options={"allow_http": True})
    path = f"kv/pages-v1/{storage_name(key_of(1), b'').hex()}"
    obstore.put(raw, path, encode_header(put.record) + put.payload.tobytes()[:-5])
    assert store.probe([key_of(1)]) == [None]
    out = read(store, put)
    assert out == "truncated"
    obstore.put(raw, path, encode_header(put.record) + put.payload.tobytes())
    assert store.probe([key_of(1)]) == [put.record]
    assert read(store, put) == ""
    assert store.place.startswith(s3) and SECRET not in store.place + repr(store)


def test_canary(tmp_path: Path) -> None:
    """A read that fails leaves no bytes of another page where the engine would use them."""
    store = ObjectStore(str(tmp_path))
    store.put([numbered(1)])
    path = file_of(tmp_path, 1)
    path.write_bytes(path.read_bytes()[: PAGE // 2])
    out = np.full(PAGE, CANARY, dtype=np.uint8)
    (done,) = store.get([Get(numbered(1).record, 0, out)])
    assert done.reason == "truncated" and (out == CANARY).all()
