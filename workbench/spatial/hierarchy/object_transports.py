"""How pages get to objects and back: by the storage's client, or by NIXL beside it.

    direct   the client's range requests               (object_page.py)
    nixl     NIXL's OBJ plug-in, for a bucket alone    pip install 'kv-workbench[transports]'

NIXL writes whole objects and reads ranges straight to where they are wanted. All else stays with
the client, because of what the plug-in does (1.5.1): it cannot create an object only where none is,
calls a read of too short an object a success, and leaves an error's text in the destination. So the
client looks first:

    write   HEAD, then PUT. Two engines at one moment may both write: both objects are whole pages
            of that key, one stays, and a reader who wanted the other sees that by its header
    read    the header, which tells a missing, cut or other object before NIXL may touch anything

What NIXL then fails at is done again by the client, which tells why. A server that goes away at
that very moment holds a transfer up for 25 s, until the plug-in's own attempts have ended.
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, S3Store

from workbench.spatial.hierarchy.aligned import address
from workbench.spatial.hierarchy.medium import Get, MediumFault
from workbench.spatial.hierarchy.nixl_agent import NixlAgent
from workbench.spatial.hierarchy.object_address import OpenedStore, fault_reason
from workbench.spatial.hierarchy.object_page import FAULTS, PageObjects
from workbench.spatial.hierarchy.record_header import (
    decode_header,
    encode_header,
    total_bytes,
)

NUM_THREADS = 16  # of the plug-in: as many requests at once as the client makes
_FROM_ENVIRONMENT = {
    "access_key": ("AWS_ACCESS_KEY_ID",),
    "secret_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "use_virtual_addressing": ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",),
}


def open_pages(opened: OpenedStore, transport: str) -> PageObjects:
    """The transport of that name; MediumFault in one sentence where it cannot be had."""
    if transport != "nixl":
        return PageObjects(opened.store)
    if not opened.bucket:
        raise MediumFault(
            "no_transport",
            "NIXL moves objects of an S3 bucket, not files of a folder: give s3://bucket, or "
            "choose the direct transport",
        )
    return NixlPages(opened.store, NixlAgent("OBJ", obj_options(opened)))


def obj_options(opened: OpenedStore, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the plug-in has to know of a bucket; secrets come from the environment alone."""
    if environment.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes"):
        raise MediumFault(
            "no_transport",
            "NIXL signs its requests, and AWS_SKIP_SIGNATURE is set: choose the direct transport",
        )
    found = {
        option: next((environment[name] for name in names if environment.get(name)), "")
        for option, names in _FROM_ENVIRONMENT.items()
    }
    found |= {
        "bucket": opened.bucket,
        "endpoint_override": opened.endpoint,
        "scheme": "http" if opened.endpoint.startswith("http://") else "https",
        "num_threads": str(NUM_THREADS),
        "req_checksum": "required",  # where S3 wants one: slices carry their own
        "resp_checksum": "required",
    }
    return {option: value for option, value in found.items() if value}


class NixlPages(PageObjects):
    """Pages of a bucket, their bytes moved by NIXL; threads may share it."""

    def __init__(self, store: LocalStore | S3Store, agent: NixlAgent) -> None:
        super().__init__(store)
        self.way = "NIXL OBJ"
        self._agent = agent
        self._numbers = itertools.count(1)  # what the plug-in knows objects by

    def read(self, path: str, gets: Sequence[Get]) -> str:
        """Read ranges of one object; returns the reason of a fault."""
        record = gets[0].record
        header = encode_header(record)
        try:
            found = obstore.get(self._store, path, options={"range": (0, len(header))})
            data, size = bytes(found.bytes()), found.meta["size"]
            if data != header:
                decode_header(data)
                return "changed"  # another page of the same key has taken its place
            if size != total_bytes(record):
                return "truncated"
        except FAULTS as error:
            return fault_reason(error)
        here = [(address(get.out), get.out.nbytes) for get in gets]
        if self._move(False, path, here, [len(header) + get.offset for get in gets]):
            return ""
        return super().read(path, gets)

    def num_requests(self, gets: Sequence[Get]) -> int:
        """Requests that `read` makes: one for the header, one a range."""
        return 1 + len(gets)

    def _write(self, path: str, parts: Any) -> None:
        try:
            obstore.head(self._store, path)
        except FileNotFoundError:
            pass  # as it should be: an object is written once
        else:
            raise AlreadyExistsError(path)
        whole = np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
        if not self._move(True, path, [(address(whole), whole.nbytes)], [0]):
            super()._write(path, parts)

    def _move(
        self, write: bool, path: str, here: list[tuple[int, int]], offsets: list[int]
    ) -> bool:
        number = next(self._numbers)
        try:
            registered = self._agent.register("OBJ", [(0, 0, number, path)])
        except MediumFault:  # then the client does it, as whatever else fails
            return False
        there = [(at, size, number) for at, (_, size) in zip(offsets, here, strict=True)]
        moved = self._agent.begin(write, here, "OBJ", there).wait()
        self._agent.forget(registered)
        return moved
