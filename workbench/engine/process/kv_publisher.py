"""KV events for routers on a ZeroMQ PUB socket, as vLLM publishes them, and in a file.

    PUB     topic (empty) | sequence, 8 bytes big endian | KVEventBatch in msgpack
    ROUTER  asked with a sequence (8 bytes): every batch kept from there on, then sequence -1

Sequences count batches from 0, so that a reader sees what it has missed and asks for it again.
Frames and the way of asking are those of vLLM 0.32 `distributed/kv_events.py`.
"""

import os
import queue
import socket
import struct
import threading
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import zmq

from workbench.errors import RequestError, SettingError
from workbench.events import KVEventBatch
from workbench.settings.addresses import secret_part
from workbench.spatial.hierarchy.addresses import is_loopback

TOPIC = b""
END = (-1).to_bytes(8, "big", signed=True)
KEPT_BATCHES = 10_000  # for those who ask again; vLLM keeps as many
_QUEUE = 100_000  # batches that wait for a slow reader, before the newest are dropped
_POLL_S = 0.05  # a question for old batches waits so long at most
_LINGER_MS = 500
_MAX_SOCKET_PATH = 100


class KvPublisher:
    """Publishes batches from a thread of its own; calling it never blocks.

    `address` and `replay` are `tcp://` with a port of this machine or `ipc://` with a path; the
    token ids in the events are users' texts, so no other machine may read them directly. Binds at
    once; SettingError in one sentence if that cannot be. `replay` may be empty.
    """

    def __init__(self, address: str, replay: str = "") -> None:
        for given in filter(None, (address, replay)):
            check_address(given)
        self._context = zmq.Context()
        try:
            self._events = self._bind(zmq.PUB, address)
            self._asked = self._bind(zmq.ROUTER, replay) if replay else None
        except SettingError:
            self._context.destroy(linger=0)
            raise
        self._queue: queue.SimpleQueue[KVEventBatch | None] = queue.SimpleQueue()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._next = 0
        self._thread = threading.Thread(target=self._run, name="kv events", daemon=True)
        self._thread.start()

    def __call__(self, batch: KVEventBatch) -> None:
        """Publish a batch, which nobody may change from now on."""
        self._queue.put(batch)

    def close(self) -> None:
        """Send what waits (0.5 s at most) and free the addresses; twice is harmless."""
        self._queue.put(None)
        self._thread.join()

    def _bind(self, kind: int, address: str) -> "zmq.Socket[bytes]":
        path = address.removeprefix("ipc://") if address.startswith("ipc://") else ""
        if path and _somebody_listens(path):  # zmq would take it away from its owner
            raise SettingError(_in_use(address))
        bound = self._context.socket(kind)
        bound.setsockopt(zmq.SNDHWM, _QUEUE)
        try:
            bound.bind(address)
            if path:
                os.chmod(path, 0o600)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise SettingError(_in_use(address)) from None
            raise SettingError(
                f"KV events cannot be published at {address} ({zmq.strerror(error.errno or 0)}): "
                "choose another address"
            ) from None
        return bound

    def _run(self) -> None:
        encode = msgspec.msgpack.Encoder().encode
        while True:
            try:
                batch = self._queue.get(timeout=_POLL_S if self._asked is not None else None)
            except queue.Empty:
                self._answer()
                continue
            if batch is None:
                break
            message = self._next.to_bytes(8, "big"), encode(batch)
            self._next += 1
            if self._asked is not None:
                self._kept.append(message)
            self._events.send_multipart((TOPIC, *message))
            self._answer()
        self._context.destroy(linger=_LINGER_MS)

    def _answer(self) -> None:
        """Send what was asked for again; a question of another form gets no answer."""
        while self._asked is not None and self._asked.poll(0):
            reader, *question = self._asked.recv_multipart()
            if len(question) != 2 or len(question[1]) != 8:
                continue
            for number, payload in self._kept:
                if number >= question[1]:
                    self._asked.send_multipart((reader, b"", TOPIC, number, payload))
            self._asked.send_multipart((reader, b"", TOPIC, END, b""))


class KvFile:
    """Writes batches to a file: each after its length as 4 bytes, little endian.

    A batch's sequence is its place in the file, from 0. RequestError if the disk is full, say.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encode = msgspec.msgpack.Encoder().encode
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise self._cannot(error) from None

    def __call__(self, batch: KVEventBatch) -> None:
        """Append a batch."""
        payload = self._encode(batch)
        try:
            self._file.write(struct.pack("<I", len(payload)) + payload)
        except OSError as error:
            raise self._cannot(error) from None

    def close(self) -> None:
        """Write what waits."""
        try:
            self._file.close()
        except OSError as error:
            raise self._cannot(error) from None

    def _cannot(self, error: OSError) -> RequestError:
        return RequestError(
            f"{self._path} cannot be written ({error.strerror}): name a file elsewhere"
        )


def check_address(address: str) -> None:
    """SettingError, in one sentence, unless an address lies on this machine and is whole."""
    secret = secret_part(address)
    if secret:
        raise SettingError(f"the address of KV events holds a {secret}: leave it out")
    if address.startswith("ipc://"):
        path = Path(address.removeprefix("ipc://"))
        if path.is_absolute() and len(bytes(path)) <= _MAX_SOCKET_PATH and path.parent.is_dir():
            return
        raise SettingError(
            f"KV events cannot be published at {address}: give ipc:// and an absolute path in a "
            f"folder that is there, of at most {_MAX_SOCKET_PATH} bytes"
        )
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    whole = address.startswith("tcp://") and host and port and not (parts.path or parts.query)
    if not whole:
        raise SettingError(
            f"KV events cannot be published at {address}: give tcp://127.0.0.1:PORT or "
            "ipc:///path/of/a/socket"
        )
    if not is_loopback(host):
        raise SettingError(
            f"KV events are published on this machine alone, for they hold the texts of requests, "
            f"and {address} is open to others: give tcp://127.0.0.1:{port} and forward the port "
            "where another machine has to read it"
        )


def _in_use(address: str) -> str:
    return f"KV events cannot be published at {address}, which is in use: choose another address"


def _somebody_listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(path) == 0
