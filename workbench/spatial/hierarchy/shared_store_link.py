"""A client's connection to a shared store: calls with a time limit, and the memory it shares."""

import socket
from collections.abc import Callable
from typing import TypeVar

import msgspec
import zmq

from workbench.clock import RealClock
from workbench.spatial.hierarchy import shared_store_protocol as protocol
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.shared_store_arena import ArenaAccess
from workbench.spatial.hierarchy.shared_store_protocol import Answer, Body, Call, Welcome

CONNECT_S = 0.2  # a store that is there answers a connection at once
_POLL_MS = 20
_Value = TypeVar("_Value")


class StoreLink:
    """One DEALER socket, and the memory as `attach` reaches it; used by one thread at a time.

    A store that went away is a MediumFault "unreachable" within `timeout_s`; one that came back,
    or another in its place, is greeted anew by the next call.
    """

    def __init__(
        self,
        address: str,
        owner: bytes,
        timeout_s: float,
        attach: Callable[[Welcome], ArenaAccess],
    ) -> None:
        protocol.check_address(address)
        self.address = address
        self._owner = owner
        self._attach = attach
        self._timeout_s = timeout_s
        self._clock = RealClock()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RECONNECT_IVL, 20),
            (zmq.RECONNECT_IVL_MAX, 200),
            (zmq.IMMEDIATE, 1),  # nothing is queued for a store that is not there
        ):
            self._socket.setsockopt(option, value)
        self._socket.connect(address)
        self._encode = msgspec.msgpack.Encoder().encode
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._last_call = 0
        self._welcome: Welcome | None = None
        self._arena: ArenaAccess | None = None

    @property
    def welcome(self) -> Welcome:
        """What the store said of itself."""
        if self._welcome is None:
            raise self._unreachable()
        return self._welcome

    @property
    def arena(self) -> ArenaAccess:
        """The store's memory."""
        if self._arena is None:
            raise self._unreachable()
        return self._arena

    def greet(self, opening: bool = False) -> None:
        """Say Hello and reach the store's memory (MediumFault with one sentence).

        `opening`: tell a stranger who listens there from nobody, which takes a little longer.
        """
        self._welcome = self._arena = None
        try:
            answer = self._hello(opening)
            welcome = msgspec.msgpack.decode(answer.value, type=Welcome)
        except msgspec.DecodeError:
            raise self._foreign() from None
        self._arena, self._welcome = self._attach(welcome), welcome

    def call(self, body: Body, kind: type[_Value]) -> _Value:
        """The store's answer (MediumFault)."""
        if self._welcome is None or self.arena.lost:
            self.greet()
        answer = self._exchange(body, CONNECT_S)
        if answer.error == "stale":  # another store has taken its place
            self.greet()
            if isinstance(body, protocol.Commit):
                raise MediumFault("gone", "the shared store was started anew meanwhile")
            answer = self._exchange(body, CONNECT_S)
        if answer.error:
            raise MediumFault(answer.error, f"shared store {self.address}: {answer.error} call")
        try:
            return msgspec.msgpack.decode(answer.value, type=kind)
        except msgspec.DecodeError:
            raise self._foreign() from None

    def notify(self, body: Body) -> None:
        """Tell the store something that it does not answer; lost if it is not there."""
        if self._welcome is not None:
            try:
                self._send(body, 0.0)
            except MediumFault:
                pass  # what it would have released ends by itself, with its lease

    def close(self) -> None:
        """Drop the connection and the mapping."""
        self._welcome = self._arena = None
        self._context.destroy(linger=0)

    def _hello(self, opening: bool) -> Answer:
        try:
            return self._exchange(protocol.Hello(), CONNECT_S)
        except MediumFault as fault:
            if not (opening and fault.reason == "unreachable" and self._somebody_listens()):
                raise
        try:
            return self._exchange(protocol.Hello(), self._timeout_s)  # it has just started
        except MediumFault as fault:
            raise self._foreign() if fault.reason == "unreachable" else fault from None

    def _send(self, body: Body, connect_s: float) -> int:
        self._last_call += 1
        number = self._welcome.arena if self._welcome is not None else 0
        payload = self._encode(Call(self._last_call, number, self._owner, body))
        if not self._socket.poll(int(connect_s * 1000), zmq.POLLOUT):
            raise self._unreachable()
        try:
            self._socket.send_multipart([protocol.prefix(), payload], zmq.NOBLOCK)
        except zmq.Again:  # it went away since: to wait here could be to wait for ever
            raise self._unreachable() from None
        return self._last_call

    def _exchange(self, body: Body, connect_s: float) -> Answer:
        call_id = self._send(body, connect_s)
        until_s = self._clock.now_s() + self._timeout_s
        while self._clock.now_s() < until_s:
            if not self._socket.poll(_POLL_MS):
                if not self._socket.poll(0, zmq.POLLOUT):
                    break  # the connection ended: nothing will come
                continue
            frames = self._socket.recv_multipart()
            version = protocol.version_of(frames[0])
            if version is None or len(frames) != 2:
                raise self._foreign()
            if version != protocol.VERSION:
                raise MediumFault(
                    "other_version",
                    f"the shared store at {self.address} speaks version {version}, this workbench "
                    f"version {protocol.VERSION}: start both from one release",
                )
            try:
                answer = self._answers.decode(frames[1])
            except msgspec.DecodeError:
                raise self._foreign() from None
            if answer.call_id in (call_id, -1):  # others are late answers to calls given up
                return answer
        self._welcome = None  # greet before the next call: it may be another store by then
        raise self._unreachable()

    def _somebody_listens(self) -> bool:
        scheme, _, rest = self.address.partition("://")
        host, _, port = rest.rpartition(":")
        family = socket.AF_UNIX if scheme == "ipc" else socket.AF_INET
        target = rest if scheme == "ipc" else (host, int(port))
        if host.startswith("["):
            family, target = socket.AF_INET6, (host.strip("[]"), int(port))
        with socket.socket(family) as probe:
            probe.settimeout(CONNECT_S)
            return probe.connect_ex(target) == 0

    def _unreachable(self) -> MediumFault:
        return MediumFault(
            "unreachable",
            f"no shared store answers at {self.address}: "
            f"start one with `workbench store serve --address {self.address}`",
        )

    def _foreign(self) -> MediumFault:
        return MediumFault(
            "foreign",
            f"what listens at {self.address} is no shared store of this workbench: "
            "choose another address",
        )
