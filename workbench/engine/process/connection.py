"""The client's side of one engine process: start it, talk to it, notice its death."""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec
import zmq

from workbench.engine.process import protocol
from workbench.engine.process.endpoints import Endpoints, LaunchOptions
from workbench.engine.process.environment import engine_environment
from workbench.engine.process.protocol import (
    WELCOME,
    Command,
    Published,
    Reply,
)
from workbench.errors import EngineDied

SERVER_MODULE = "workbench.engine.process.server"
_POLL_MS = 200  # a death is noticed within this time
_LAST_TOKENS_MS = 20
_LOADING = b'"state":"loading"'


class Connection:
    """Starts one engine process and owns its sockets in a thread of its own.

    Callbacks run in that thread. `on_frame(frame, is_loading)`; `on_death(reason)` once, unless
    `close` was called before.
    """

    def __init__(
        self,
        options: LaunchOptions,
        *,
        on_frame: Callable[[bytes, bool], None],
        on_published: Callable[[Published], None],
        on_death: Callable[[str], None],
        want_frames: bool,
    ) -> None:
        self._on_frame, self._on_published, self._on_death = on_frame, on_published, on_death
        directory = tempfile.mkdtemp(prefix="kvw-")  # mode 0700
        self._endpoints = Endpoints(directory)
        self._endpoints.options_file.write_bytes(msgspec.json.encode(options))
        self._process = self._launch()
        self._calls: dict[int, Future[Reply]] = {}
        self._calls_lock = threading.Lock()
        self._next_call = 0
        self._outbox: queue.SimpleQueue[tuple[Command, Future[Reply]]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._want_frames = want_frames
        self._closing = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="engine client", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    @property
    def log_file(self) -> Path:
        """What the engine process printed."""
        return self._endpoints.log_file

    def send(self, body: protocol.Body) -> "Future[Reply]":
        """Send a command; the future gets its reply or EngineDied."""
        future: Future[Reply] = Future()
        with self._calls_lock:
            if self._ended:
                future.set_exception(EngineDied("the engine has ended: restart it"))
                return future
            self._next_call += 1
            self._outbox.put((Command(self._next_call, body), future))
            self._wake()
        return future

    def want_frames(self, wanted: bool) -> None:
        """Ask for frames, or stop asking."""
        self._want_frames = wanted
        with self._calls_lock:
            if not self._ended:
                self._wake()

    def close(self, timeout_s: float) -> None:
        """End the process, by force after `timeout_s`, and remove its directory."""
        self._closing = True
        if self._process.poll() is None:
            self.send(protocol.Shutdown())
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        shutil.rmtree(self._endpoints.directory, ignore_errors=True)

    def _launch(self) -> "subprocess.Popen[bytes]":
        # The pipe on its standard input tells the engine that we are gone; a session of its own
        # keeps Ctrl-C in the terminal ours.
        with self._endpoints.log_file.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", SERVER_MODULE, self._endpoints.directory],
                stdin=subprocess.PIPE,
                env=engine_environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the thread as well
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        context = zmq.Context()
        try:
            sockets = _Sockets(context, self._endpoints, self._wake_read)
            while self._process.poll() is None:
                self._serve(sockets)
            sockets.drain(self._take_published, _LAST_TOKENS_MS)  # sent before the end
        finally:
            self._finish(context)

    def _serve(self, sockets: "_Sockets") -> None:
        sockets.set_frames(self._want_frames)
        ready = sockets.poll(_POLL_MS)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        # Commands wait until nothing published can be missed.
        while sockets.welcomed and not self._outbox.empty():
            command, future = self._outbox.get()
            self._calls[command.call_id] = future
            sockets.commands.send(msgspec.msgpack.encode(command))
        # Tokens before answers: who has an id finds its entry in the journal.
        sockets.drain(self._take_published)
        sockets.drain_replies(self._take_reply)
        frame = sockets.take_frame()
        if frame is not None:
            self._on_frame(frame, _LOADING in frame[:4096])

    def _take_published(self, payload: bytes) -> None:
        self._on_published(msgspec.msgpack.decode(payload, type=Published))

    def _take_reply(self, payload: bytes) -> None:
        reply = msgspec.msgpack.decode(payload, type=Reply)
        future = self._calls.pop(reply.call_id, None)
        if future is not None and not future.done():
            future.set_result(reply)

    def _finish(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        if self._closing:
            reason = "the engine was closed"
        else:
            reason = describe_death(self._process.wait(), self._endpoints)
        with self._calls_lock:
            self._ended = True
            while not self._outbox.empty():
                command, future = self._outbox.get()
                self._calls[command.call_id] = future
            os.close(self._wake_read)
            os.close(self._wake_write)
        if not self._closing:
            self._on_death(reason)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDied(reason))
        context.destroy(linger=0)


class _Sockets:
    """Connected sockets of one engine; used by one thread."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoints: Endpoints, wake_fd: int
    ) -> None:
        self.welcomed = False
        self.commands = context.socket(zmq.DEALER)
        self._outputs = context.socket(zmq.SUB)
        self._frames = context.socket(zmq.SUB)
        self._subscribed = False
        for socket in (self.commands, self._outputs, self._frames):
            socket.setsockopt(zmq.RECONNECT_IVL, 20)
            socket.setsockopt(zmq.LINGER, 0)
        for socket in (self.commands, self._outputs):
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
        # Not CONFLATE: it also conflates, and may lose, the subscriptions that go the other way.
        self._frames.setsockopt(zmq.RCVHWM, 4)
        self._outputs.setsockopt(zmq.SUBSCRIBE, b"")
        self.commands.connect(endpoints.commands)
        self._outputs.connect(endpoints.outputs)
        self._frames.connect(endpoints.frames)
        self._poller = zmq.Poller()
        for item in (self.commands, self._outputs, self._frames, wake_fd):
            self._poller.register(item, zmq.POLLIN)

    def poll(self, timeout_ms: int) -> "set[object]":
        """What has something to read."""
        return {item for item, _ in self._poller.poll(timeout_ms)}

    def set_frames(self, wanted: bool) -> None:
        """Subscribe to frames or not."""
        if wanted != self._subscribed:
            self._frames.setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, b"")
            self._subscribed = wanted

    def drain(self, take: Callable[[bytes], None], timeout_ms: int = 0) -> None:
        """Hand over all published messages that are there."""
        while self._outputs.poll(timeout_ms):
            payload = self._outputs.recv()
            if payload == WELCOME:
                self.welcomed = True
            else:
                take(payload)

    def drain_replies(self, take: Callable[[bytes], None]) -> None:
        """Hand over all replies that are there."""
        while self.commands.poll(0):
            take(self.commands.recv())

    def take_frame(self) -> bytes | None:
        """The newest frame, if one came."""
        frame = None
        while self._frames.poll(0):
            frame = self._frames.recv()
        return frame


def describe_death(code: int, endpoints: Endpoints) -> str:
    """One sentence about how a process ended: what it wrote, else its signal or exit code."""
    try:
        text = endpoints.crash_file.read_text().strip()
    except OSError:  # killed before it could write one: the exit code has to do
        text = ""
    if text:
        return f"the engine stopped: {text}"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal has no name
            name = str(-code)
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"the engine was ended by signal {name}{hint}"
    return f"the engine ended with exit code {code}"
