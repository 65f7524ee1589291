"""Sentences of tiers that cannot be: too small for a block, or credentials that nobody accepts."""

import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.core import set_initial_no_auth_action_count
from moto.server import ThreadedMotoServer

from tests.engine.harness import build
from tests.spatial.conftest import Harness
from workbench.errors import TierError
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.object_store import ObjectStore

SECRET = "hush-hush"
TIERS = [
    ("shared_mib", "the shared tier", {"shared": "store"}),
    ("object_mib", "the object tier", {}),
    ("disk_mib", "the disk tier", {}),
]


@pytest.mark.parametrize(("field", "what", "more"), TIERS)
@pytest.mark.parametrize("size", [0.007, 1e-8])
def test_a_tier_below_one_block_names_its_least_size(
    harness: Callable[..., Harness],
    tmp_path: Path, field: str, what: str, more: dict[str, Any], size: float,
) -> None:  # fmt: skip
    more = more | ({"object_url": str(tmp_path)} if field == "object_mib" else {})
    t = harness(1)
    with pytest.raises(TierError) as caught:
        t.h.configure(dataclasses.replace(t.settings, **more, **{field: size}))
    told = re.fullmatch(
        rf"tiers\.{field} = {size} MiB holds no page of 8192 bytes: give at least (\d+\.\d+), "
        rf"or 0 to switch {what} off",
        str(caught.value),
    )
    assert told, caught.value
    changes = {"dram_mib": 0.0, **more, field: float(told[1])}
    t.h.configure(dataclasses.replace(t.settings, **changes))
    assert t.store(t.key(1))
    t.settle()
    assert t.load([t.key(1)]) != [""], "the size that the sentence names holds a page"
    t.h.configure(dataclasses.replace(t.settings, **(changes | {field: 0.0})))
    assert t.h.first_tier == ""


def test_a_server_of_our_own_that_needs_more(harness: Callable[..., Harness]) -> None:
    t = harness(1)
    told = re.escape(
        "tiers.shared_mib = 3.5 MiB is too little for a server of this engine's own (tiers.shared "
        "= valkey): give at least 4, or 0 to switch the shared tier off"
    )
    with pytest.raises(TierError, match=told):
        t.h.configure(dataclasses.replace(t.settings, shared="valkey", shared_mib=3.5))
    t.h.configure(dataclasses.replace(t.settings, dram_mib=0.0, shared="valkey", shared_mib=4.0))
    assert t.store(t.key(1))
    t.settle()
    assert t.load([t.key(1)]) == ["G3.5"]


@pytest.mark.parametrize(("field", "what", "more"), TIERS)
def test_an_engine_that_is_asked_for_one_stays_as_it_was(
    tmp_path: Path, field: str, what: str, more: dict[str, Any]
) -> None:
    engine = build({})
    before = engine.config
    changes = {f"tiers.{name}": value for name, value in more.items()}
    changes |= {"tiers.object_url": str(tmp_path)} if field == "object_mib" else {}
    with pytest.raises(TierError, match=rf"tiers.{field} = 0.001 MiB holds no page .* {what} off"):
        engine.apply(changes | {f"tiers.{field}": 0.001})
    assert engine.config == before
    engine.close()


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bucket of a server that checks who asks, and the environment of a stranger."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    name = f"bucket-{time.monotonic_ns()}"
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket=name)
    yield f"s3://{name}/kv"
    server.stop()


def test_credentials_that_a_server_refuses(guarded: str) -> None:
    ObjectStore(guarded).close(keep=True)  # the server checks nothing yet

    @set_initial_no_auth_action_count(0)
    def ask() -> None:
        sentence = "did not accept the credentials in the environment"
        with pytest.raises(MediumFault, match=sentence) as caught:
            ObjectStore(guarded)
        assert caught.value.reason == "unauthorised"
        assert str(caught.value).startswith(f"object storage {guarded} at http://127.0.0.1:")
        assert SECRET not in str(caught.value) and "stranger" not in str(caught.value)
        with pytest.raises(TierError, match=f"the object tier cannot be opened: .*{sentence}"):
            build({"tiers.object_url": guarded})

    ask()


def test_credentials_that_are_taken_back_make_misses(guarded: str) -> None:
    engine = build({"tiers.object_url": guarded})
    hierarchy = engine.hierarchy
    hierarchy.wait_io()

    @set_initial_no_auth_action_count(0)
    def ask() -> None:
        assert not hierarchy.lookups.know([bytes(32)])
        hierarchy.wait_io()
        hierarchy.poll()
        assert hierarchy.lookups.know([bytes(32)])

    ask()
    engine.close()
