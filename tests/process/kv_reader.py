"""A router's side of the KV events: reads the socket and asks for what it missed, as vLLM's do."""

from typing import Any

import msgspec
import zmq

from workbench.events import AllBlocksCleared, BlockStored, KVEventBatch

Message = tuple[int, bytes]  # sequence, payload
END = -1


class Reader:
    """A SUB socket on one address; it may connect before anybody publishes there."""

    def __init__(self, context: "zmq.Context[Any]", address: str) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)

    def take(self, wait_ms: int = 300) -> list[Message]:
        """All messages until none comes for a while."""
        found = []
        while self._socket.poll(wait_ms):
            topic, number, payload = self._socket.recv_multipart()
            assert topic == b"" and len(number) == 8
            found.append((int.from_bytes(number, "big"), payload))
        return found


def ask(context: "zmq.Context[Any]", address: str, *question: bytes) -> list[Message]:
    """What is answered to a question (of one frame: a sequence), to its end or for 2 seconds."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(address)
    socket.send_multipart([b"", *question])
    found: list[Message] = []
    while socket.poll(2000) and (not found or found[-1][0] != END):
        empty, topic, number, payload = socket.recv_multipart()
        assert empty == topic == b""
        found.append((int.from_bytes(number, "big", signed=True), payload))
    socket.close()
    return found


def known(messages: list[Message]) -> dict[str | None, set[bytes]]:
    """Which hashes are on which medium after these messages."""
    found: dict[str | None, set[bytes]] = {}
    for _, payload in messages:
        for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
            if isinstance(event, AllBlocksCleared):
                found.clear()
            elif isinstance(event, BlockStored):
                found.setdefault(event.medium, set()).update(event.block_hashes)
            else:
                found[event.medium] -= set(event.block_hashes)
    return {medium: keys for medium, keys in found.items() if keys}
