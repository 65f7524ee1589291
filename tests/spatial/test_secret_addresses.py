"""No address with a secret in it is taken, and no refusal repeats one."""

import logging
import re
import traceback
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.panels.link import link_address, read_link
from tests.engine.harness import build
from workbench.config import EngineConfig, replace_settings
from workbench.errors import SettingError
from workbench.settings.tiers import TierSettings
from workbench.snapshot import decode_frame
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.mooncake_library import parse_address
from workbench.spatial.hierarchy.object_address import open_store
from workbench.spatial.hierarchy.shared_store_protocol import check_address
from workbench.spatial.hierarchy.valkey_address import client_options

SECRET = "S3CRET"
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
SCHEMES = ["", "s3", "http", "https", "valkey", "valkeys", "redis", "rediss", "unix", "tcp", "ipc",
           "mooncake", "file", "ftp"]  # fmt: skip
PATH = re.compile(r"/.*|(file|ipc|unix):///[^?#]*")  # of this machine, and no secret
FIELDS = ("object_url", "shared_address")
ASKED = [
    ("object_url", lambda address: open_store(address, KEYS)),
    (
        "endpoint",
        lambda address: open_store("s3://bucket/kv", KEYS | {"AWS_ENDPOINT_URL": address}),
    ),
    ("pool", lambda address: client_options(address, 1.0, {})),
    ("store", check_address),
    ("mooncake", parse_address),
]

_around = st.text("aZ9/@:?#%[]&=.\\ ＠", max_size=4)
passwords = st.builds(lambda a, b: f"{a}{SECRET}{b}", _around, _around)
hosts = st.sampled_from(
    ["h", "host:6379", "[::1]:7", "127.0.0.1", "bucket", "h:1/2", "a.b/c/d", ""]
)


@st.composite
def addresses(draw: st.DrawFn) -> str:
    scheme = draw(st.sampled_from(SCHEMES))
    begin, password, host = f"{scheme}://" if scheme else "", draw(passwords), draw(hosts)
    user = draw(st.sampled_from(["", "me", "a/b", "a@b"]))
    name = draw(st.sampled_from(["password", "X-Amz-Signature", "admin", ""]))
    return draw(st.sampled_from([
        f"{begin}{user}:{password}@{host or 'h'}",
        f"{begin}{password}@{host or 'h'}",
        f"{begin}{host or 'h'}?{name}={password}",
        f"{begin}{host or 'h'}?admin=1&{name}={password}",
        f"{begin}{host or 'h'}#{password}",
        f"{begin or 'unix://'}/x?{name}={password}",
        f"{begin}me:{SECRET}",
    ]))  # fmt: skip


def told(error: BaseException) -> str:
    """All that is ever printed of an error."""
    return str(error) + repr(error) + "".join(traceback.format_exception(error))


def refusal(kind: type[Exception], run: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        run()
    return told(caught.value)


@settings(max_examples=400, deadline=None)
@given(addresses())
@example(f"https://bucket.example/kv?X-Amz-Signature={SECRET}")
@example(f"valkey://h?password={SECRET}")
@example(f"valkey://user:pa/{SECRET}@h")
@example(f"unix:///x?password={SECRET}")
@example(f"mooncake://h:1?admin=8&password={SECRET}")
@example(f"https://user:{SECRET}")
@example(f"https://{SECRET}＠h")
def test_settings_and_media_refuse_it_without_repeating_it(address: str) -> None:
    if PATH.fullmatch(unicodedata.normalize("NFKC", address)):
        return
    for field in FIELDS:
        assert SECRET not in refusal(
            SettingError, lambda field=field: TierSettings(**{field: address})
        )
        changes = {f"tiers.{field}": address}
        assert SECRET not in refusal(
            SettingError, lambda changes=changes: replace_settings(EngineConfig(), changes)
        )
    for what, ask in ASKED:
        with pytest.raises(MediumFault) as caught:
            ask(address)
        assert SECRET not in told(caught.value), what


@pytest.mark.parametrize(
    "address",
    ["/home/me@work/a#b?", "file:///home/me@work", "s3://bucket/a/b", "ipc:///tmp/me@work/store",
     "unix:///run/me@work", "valkey://h", "valkey://[::1]:7/2", "rediss://pool.example:7000/3",
     "mooncake://10.0.0.7:50051?admin=9003", "tcp://localhost:5555"],
)  # fmt: skip
def test_addresses_without_one_are_taken(address: str) -> None:
    assert TierSettings(object_url=address).object_url == address
    assert TierSettings(shared_address=address).shared_address == address


@pytest.mark.parametrize(
    "address",
    [
        f"s3://b/k?X-Amz-Signature={SECRET}",
        f"valkey://h#{SECRET}",
        f"valkey://u:p/{SECRET}@h",
        f"unix:///x?password={SECRET}",
    ],
)
def test_an_engine_that_refused_one_shows_it_nowhere(
    address: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = build({})
    for field in FIELDS:
        path = f"tiers.{field}"
        changes = {path: address, "tiers.shared": "valkey"}
        assert SECRET not in refusal(SettingError, lambda changes=changes: engine.apply(changes))
        assert SECRET not in read_link({path: address}).error
    seen = msgspec.json.encode(decode_frame(engine.frame(1, state="running"))[0]).decode()
    seen += repr(engine.config) + link_address("http://localhost:8501/", engine.config)
    seen += repr(engine.events_since(0)) + caplog.text + "".join(capsys.readouterr())
    assert SECRET not in seen and '"settings"' in seen
    engine.close()
