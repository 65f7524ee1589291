"""Objects moved by NIXL: the contract where it is installed, one sentence where it is not."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np
import obstore
import pytest
import requests
from moto.server import ThreadedMotoServer

from tests.spatial.conftest import Harness
from tests.spatial.media import CANARY, PAGE, key_of, numbered, page_of, put_of, read, reasons
from tests.spatial.medium_contract import CAP, MediumContract, Open, closing
from tests.spatial.test_disk_transports import HAS_NIXL
from tests.spatial.test_object_store import SECRET, s3, s3_server
from tests.spatial.test_shared_transports import nixl_only
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.engine.views.tier_report import medium_name
from workbench.errors import TierError
from workbench.spatial.hierarchy.aligned import address
from workbench.spatial.hierarchy.medium import Get, MediumFault
from workbench.spatial.hierarchy.object_address import OpenedStore, open_store
from workbench.spatial.hierarchy.object_store import ObjectStore
from workbench.spatial.hierarchy.object_transports import NixlPages, obj_options
from workbench.spatial.hierarchy.record_header import encode_header, storage_name

__all__ = ["s3", "s3_server"]  # fixtures


def nixl(address: str) -> ObjectStore:
    return ObjectStore(address, CAP, transport="nixl")


def path_of(number: int) -> str:
    return "kv/pages-v1/" + storage_name(key_of(number), b"").hex()


@nixl_only
class TestContract(MediumContract):
    @pytest.fixture
    def open_medium(self, s3: str) -> Iterator[Open]:
        yield from closing(lambda: ObjectStore(s3, CAP, transport="nixl"))


@nixl_only
def test_what_one_transport_wrote_the_other_reads(s3: str) -> None:
    one, two = ObjectStore(s3), ObjectStore(s3, transport="nixl")
    assert (one.way, two.way) == ("HTTP ranges", "NIXL OBJ")
    mine, theirs = numbered(1), numbered(2, 300_000)
    assert reasons(one.put([mine]) + two.put([theirs])) == ["", ""]
    assert [read(medium, put) for medium in (one, two) for put in (mine, theirs)] == [""] * 4
    data = bytes(obstore.get(two._store, path_of(2)).bytes())
    assert data == encode_header(theirs.record) + theirs.payload.tobytes()
    two.put([mine])  # there already
    assert read(one, mine) == ""
    one.close(keep=False)
    two.close(keep=False)


@nixl_only
def test_bytes_really_go_by_nixl(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a page's PUT nor a read of its payload is one of the client's."""
    medium = ObjectStore(s3, transport="nixl")

    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("the client moved a page")

    for name in ("put", "get_range", "get_ranges"):
        monkeypatch.setattr(obstore, name, refuse)
    put = numbered(1)
    assert reasons(medium.put([put])) == [""]
    assert read(medium, put) == "" and read(medium, put, 8192, 8192) == ""
    # A header each, and a range.
    assert (medium.counts.num_reads, medium.counts.read_bytes) == (4, PAGE + 8192)
    medium.close(keep=False)


@nixl_only
def test_broken_objects_have_their_words_and_touch_nothing(s3: str) -> None:
    medium = nixl(s3)
    puts = [numbered(number) for number in range(7)]
    medium.put(puts)
    store = medium._store

    def body(number: int) -> bytearray:
        return bytearray(bytes(obstore.get(store, path_of(number)).bytes()))

    def replace(number: int, data: bytes) -> None:
        obstore.put(store, path_of(number), data, use_multipart=False)

    replace(0, bytes(body(0)[:-1000]))  # cut in its payload
    replace(1, bytes(body(1)[:20]))  # and in its header
    replace(2, b"a picture of a cat" * 100)
    other = body(3)
    other[8] = 99
    replace(3, bytes(other))
    flipped = body(4)
    flipped[40] ^= 1
    replace(4, bytes(flipped))
    replace(5, bytes(body(6)))  # the page of another key
    out = np.full((7, PAGE), CANARY, np.uint8)
    done = medium.get([Get(put.record, 0, row) for put, row in zip(puts, out, strict=True)])
    words = ["truncated", "truncated", "foreign", "other_version", "corrupt", "changed", ""]
    assert reasons(done) == words
    assert (out[:6] == CANARY).all() and (out[6] == puts[6].payload).all()
    # A broken object does not stand in the way for ever; one of another version is not ours.
    assert reasons(medium.put(puts)) == ["", "", "", "other_version", "", "", ""]
    assert [read(medium, put) for put in puts] == ["", "", "", "other_version", "", "", ""]
    medium.close(keep=False)


@nixl_only
def test_an_object_deleted_between_its_header_and_its_ranges(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NIXL would leave the error's text in the destination and says only that it failed."""
    medium = nixl(s3)
    put = numbered(1)
    medium.put([put])
    pages = medium._pages
    assert isinstance(pages, NixlPages)
    move = pages._move

    def late(*given: object) -> bool:
        obstore.delete(medium._store, path_of(1))
        return move(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(pages, "_move", late)
    assert read(medium, put) == "gone"
    medium.close(keep=False)


@nixl_only
def test_two_engines_write_one_key_at_once(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-in cannot create where none is: one page stays, and nobody reads a mixture."""
    one, two = nixl(s3), nixl(s3)
    mine, theirs = numbered(1), put_of(key_of(1), page_of(99))
    pages = one._pages
    assert isinstance(pages, NixlPages)
    move = pages._move

    def late(*given: object) -> bool:  # after the look, before the write
        assert reasons(two.put([theirs])) == [""]
        return move(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(pages, "_move", late)
    assert reasons(one.put([mine])) == [""]
    monkeypatch.setattr(pages, "_move", move)
    assert {read(one, mine), read(two, theirs)} == {"", "changed"}
    one.close(keep=False)
    two.close(keep=False)


@nixl_only
def test_credentials_that_are_refused(
    s3: str, s3_server: str, capfd: pytest.CaptureFixture[str]
) -> None:
    medium = nixl(s3)
    put = numbered(1)
    medium.put([put])
    out = np.full(PAGE, CANARY, np.uint8)

    def accept(number: str) -> None:
        """From this many requests on the server looks at credentials, of which it knows none."""
        requests.post(f"{s3_server}/moto-api/reset-auth", data=number, timeout=5)

    accept("0")
    try:
        assert reasons(medium.get([Get(put.record, 0, out)])) == ["unauthorised"]
        assert reasons(medium.put([numbered(2)])) == ["unauthorised"]
        pages = medium._pages
        assert isinstance(pages, NixlPages)
        scratch = out.copy()
        assert not pages._move(False, path_of(1), [(address(scratch), PAGE)], [0])
        with pytest.raises(MediumFault, match="did not accept the credentials"):
            nixl(s3)
    finally:
        accept("inf")
    assert (out == CANARY).all() and read(medium, put) == ""
    told = "".join(capfd.readouterr())
    assert SECRET not in told + repr(medium) + repr(pages) + repr(vars(medium._opened))
    with pytest.raises(MediumFault, match="has no such bucket"):
        nixl("s3://never-made/kv")
    medium.close(keep=False)


@nixl_only
def test_a_server_that_goes_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    boto3.client("s3", endpoint_url=url).create_bucket(Bucket="going")
    medium = nixl("s3://going/kv")
    put = numbered(1)
    assert reasons(medium.put([put])) == [""]
    server.stop()
    out = np.full(PAGE, CANARY, np.uint8)
    assert reasons(medium.get([Get(put.record, 0, out)])) == ["unreachable"]
    assert (out == CANARY).all()
    assert reasons(medium.put([numbered(2)])) == ["unreachable"]
    medium.close(keep=True)


@nixl_only
def test_the_transport_changes_live_and_is_named(s3: str) -> None:
    t = Harness(0, 0, RealClock(), object_url=s3, object_mib=8.0)
    for number in range(4):
        t.store(t.key(number))
        t.settle()
    for chosen in ("nixl", "direct", "nixl"):
        t.h.configure(TierSettings(**vars(t.settings) | {"object_transport": chosen}))
        assert t.load([t.key(0), t.key(1)]) == ["G4", "G4"]
        stats = {tier.name: tier for tier in t.h.stats().tiers}["G4"]
        names = {"direct": ("HTTP ranges", "objects"), "nixl": ("NIXL OBJ", "objects (NIXL)")}
        assert (stats.way, medium_name(stats)) == names[chosen]
    t.h.check_integrity(strict=True)
    t.h.close()


# ---- without the package, and addresses it is not for


@pytest.mark.skipif(HAS_NIXL, reason="NIXL is installed")
def test_it_says_what_is_missing_and_nothing_changes(s3: str) -> None:
    t = Harness(0, 0, RealClock(), object_url=s3, object_mib=8.0)
    t.store(t.key(0))
    t.settle()
    why = r"the object tier cannot be opened: NIXL is not installed: run pip install 'kv-workbench"
    with pytest.raises(TierError, match=why):
        t.h.configure(TierSettings(**vars(t.settings) | {"object_transport": "nixl"}))
    assert t.load([t.key(0)]) == ["G4"]
    t.h.close()
    with pytest.raises(TierError, match=why):
        Harness(0, 0, RealClock(), object_url=s3, object_mib=8.0, object_transport="nixl")


def test_a_folder_is_no_place_for_it(tmp_path: Path) -> None:
    why = "the object tier cannot be opened: NIXL moves objects of an S3 bucket, not files of a"
    with pytest.raises(TierError, match=why):
        Harness(0, 0, RealClock(), object_url=str(tmp_path), object_transport="nixl")
    t = Harness(0, 0, RealClock(), object_url=str(tmp_path))
    with pytest.raises(TierError, match=why):
        t.h.configure(TierSettings(**vars(t.settings) | {"object_transport": "nixl"}))
    assert {tier.name: tier.way for tier in t.h.stats().tiers}["G4"] == "files"
    t.h.close()


def opened(environment: dict[str, str]) -> OpenedStore:
    keys = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET}
    return open_store("s3://bucket/kv", keys | environment)


def test_the_plug_in_is_told_what_the_environment_says() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "eu-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000/", "AWS_SESSION_TOKEN": "for-an-hour",
    }  # fmt: skip
    options = obj_options(opened(environment), environment)
    assert options == {
        "access_key": "me", "secret_key": SECRET, "session_token": "for-an-hour", "region": "eu-1",
        "bucket": "bucket", "endpoint_override": "http://127.0.0.1:9000", "scheme": "http",
        "num_threads": "16", "req_checksum": "required", "resp_checksum": "required",
    }  # fmt: skip
    options = obj_options(opened({}), {})
    assert "access_key" not in options and options["scheme"] == "https"
    assert "endpoint_override" not in options
    with pytest.raises(MediumFault, match="AWS_SKIP_SIGNATURE is set: choose the direct"):
        obj_options(opened({}), {"AWS_SKIP_SIGNATURE": "true"})
