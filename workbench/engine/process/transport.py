"""The engine process's side of the sockets: commands in, replies, frames and tokens out."""

import math
import os
from typing import Any

import msgspec
import zmq

from workbench.engine.process.endpoints import Endpoints
from workbench.engine.process.protocol import WELCOME, Command, Published, Reply

_SUBSCRIBE = 1  # first byte of what an XPUB socket receives


class Transport:
    """Binds the three sockets of one engine process; used by its main thread alone."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._context = zmq.Context()
        os.umask(0o077)
        self._commands = self._bind(zmq.ROUTER, endpoints.commands)
        self._frames = self._bind(zmq.XPUB, endpoints.frames, queue=2)
        self._outputs = self._bind(zmq.XPUB, endpoints.outputs, queue=0)
        self._decoder = msgspec.msgpack.Decoder(Command)
        self._encoder = msgspec.msgpack.Encoder()
        self.has_viewers = False
        self._poller = zmq.Poller()
        self._poller.register(self._commands, zmq.POLLIN)
        self._poller.register(self._frames, zmq.POLLIN)
        self._poller.register(self._outputs, zmq.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Sleep until something arrived, at most `timeout_s`."""
        self._poller.poll(max(0, math.ceil(timeout_s * 1000.0)))

    def receive(self) -> tuple[bytes, Command] | None:
        """The next command and whom to answer, or None. Foreign bytes are answered and dropped."""
        while self._commands.poll(0):
            sender, payload = self._commands.recv_multipart()[:2]
            try:
                return sender, self._decoder.decode(payload)
            except msgspec.DecodeError as error:
                text = f"the engine does not know this command ({error}): restart the dashboard"
                self._send(sender, Reply(call_id=-1, error=text, error_kind="WorkbenchError"))
        return None

    def subscription_changed(self) -> bool:
        """Whether a viewer came or went since the last call; sets `has_viewers`."""
        changed = False
        while self._outputs.poll(0):
            if self._outputs.recv()[:1] == bytes([_SUBSCRIBE]):
                self._outputs.send(WELCOME)
        while self._frames.poll(0):
            self.has_viewers = self._frames.recv()[:1] == bytes([_SUBSCRIBE])
            changed = True
        return changed

    def answer(self, sender: bytes, call_id: int, value: Any) -> None:
        """Reply with a value."""
        raw = msgspec.Raw(self._encoder.encode(value))
        self._send(sender, Reply(call_id=call_id, value=raw))

    def refuse(self, sender: bytes, call_id: int, error: Exception) -> None:
        """Reply with an error's sentence."""
        text = str(error) or type(error).__name__
        reply = Reply(call_id=call_id, error=text, error_kind=type(error).__name__)
        self._send(sender, reply)

    def publish_frame(self, frame: bytes) -> None:
        """Send a frame to every viewer; one that lags misses it."""
        self._frames.send(frame)

    def publish(self, message: Published) -> None:
        """Send tokens or news of requests; queued without limit, so that none is lost."""
        self._outputs.send(self._encoder.encode(message))

    def close(self) -> None:
        """Send what is queued (at most 0.5 s) and close."""
        self._context.destroy(linger=500)

    def _send(self, sender: bytes, reply: Reply) -> None:
        self._commands.send_multipart([sender, self._encoder.encode(reply)])

    def _bind(self, kind: int, address: str, queue: int = 0) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, queue)
        socket.setsockopt(zmq.RCVHWM, 0)
        if kind == zmq.XPUB:
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # greet everyone who subscribes
        socket.bind(address)
        return socket
