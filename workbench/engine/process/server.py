"""The engine process, started by the client: `python -m workbench.engine.process.server DIRECTORY`.

One thread alternates between commands, steps and frames. It ends when its parent closes the pipe
on its standard input (also by dying), on SIGTERM, or on Shutdown.
"""

import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any

import msgspec

from workbench.clock import RealClock
from workbench.config import EngineConfig, all_settings, get_setting, replace_settings
from workbench.engine.heap import settle_heap
from workbench.engine.process.commands import Call, CommandHandler
from workbench.engine.process.endpoints import Endpoints, LaunchOptions
from workbench.engine.process.host import EngineHost
from workbench.engine.process.kv_publisher import KvPublisher
from workbench.engine.process.loading import Loader
from workbench.engine.process.pacing import FramePacer, SlowMotion
from workbench.engine.process.transport import Transport
from workbench.errors import WorkbenchError
from workbench.snapshot import Snapshot, encode_frame

EXIT_CRASHED = 70
_LOADING_POLL_S = 0.05
_MAX_WAIT_S = 0.5  # a signal is noticed within this time
_BUSY_CHECK_INTERVAL_S = 5.0
_QUICK_CHECK_S = 0.02
_GRACE_S = 3.0


class EngineServer:
    """The loop of one engine process; `run` returns when it is asked to end."""

    def __init__(self, endpoints: Endpoints, options: LaunchOptions) -> None:
        self.config = replace_settings(EngineConfig(), options.changes)
        self.options = options
        self.clock = RealClock()  # engine time: stands still in pauses
        self.wall = RealClock()
        self.transport = Transport(endpoints)
        self.publisher: KvPublisher | None = None
        if options.kv_events:  # before the model is loaded: readers have time to connect
            self.publisher = KvPublisher(options.kv_events, options.kv_events_replay)
        self.host = EngineHost(
            self.clock,
            self.transport.publish,
            options.first_request_number,
            options.last_event_seq,
            options.policies,
            self.publisher,
        )
        self.pacer = FramePacer()
        self.motion = SlowMotion()
        self.motion.set_speed(options.speed)
        self.paused = options.paused
        self.stopping = False
        self.loader: Loader | None = Loader(self.config, options, self.wall)
        self.handler = CommandHandler(self)
        self._reload: tuple[Call, float] | None = None
        self._seq = 0
        self._unchecked = False
        self._checked_s = float("-inf")
        self._check_took_s = 0.0
        if self.paused:
            self.clock.pause()

    def run(self) -> None:
        """Serve until asked to stop."""
        while not self.stopping:
            if self.transport.subscription_changed():
                self.pacer.hurry()
                self.set_threads()
            self.handler.handle_waiting()
            if self.loader is not None and self.loader.done:
                self._loaded(self.loader)
            worked = self.loader is None and self._work()
            if self.host.is_ready:
                self.host.engine.hierarchy.holds.renew()  # while it is paused or idle, too
            self._send_frame_if_due()
            self.transport.wait(0.0 if worked else self._idle_wait_s())
        self.host.close()
        if self.publisher is not None:
            self.publisher.close()
        self.transport.close()

    def step_once(self) -> bool:
        """One step on the engine's clock; whether there was work."""
        self.host.submit_due()
        if not self.host.engine.has_work():
            return False
        started_s = self.wall.now_s()
        self.clock.resume()
        self.host.step()
        if self.paused or self.motion.speed < 1.0:
            self.clock.pause()  # the wait until the next step is no latency
        self.motion.stepped(started_s, self.wall.now_s())
        self.pacer.touch()
        self._unchecked = True
        return True

    def set_paused(self, paused: bool) -> None:
        """Stop or go on; the metrics' clock follows."""
        self.paused = paused
        if paused:
            self.clock.pause()
        else:
            self.clock.resume()
        self.pacer.touch()

    def begin_reload(self, call: Call, changes: dict[str, Any]) -> None:
        """Load the model of a changed config; the command is answered when it is done."""
        self._reload = (call, self.wall.now_s())
        config = replace_settings(self.config, changes)
        self.loader = Loader(config, self.options, self.wall)
        self.clock.pause()
        self.pacer.touch()

    def frame(self) -> bytes:
        """The next frame."""
        self._seq += 1
        if self.loader is not None or not self.host.is_ready:
            return encode_frame(self.loading_snapshot(), [], _no_tables())
        state, detail = self.host.state(self.paused)
        return self.host.engine.frame(
            self._seq, state=state, speed=self.motion.speed, detail=detail
        )

    def snapshot(self) -> Snapshot:
        """What the engine shows now."""
        if self.loader is not None or not self.host.is_ready:
            return self.loading_snapshot()
        state, detail = self.host.state(self.paused)
        return msgspec.structs.replace(
            self.host.engine.snapshot(),
            seq=self._seq,
            state=state,
            state_detail=detail,
            speed=self.motion.speed,
        )

    def loading_snapshot(self) -> Snapshot:
        """What there is to see before the model is there."""
        loader = self.loader
        path = self.config.model.path
        name = path.rstrip("/").split("/")[-1] if path else "SmolLM2-135M"
        if self.options.random_layers:
            name = f"random ({self.options.random_layers} layers)"
        return Snapshot(
            seq=self._seq,
            step=0,
            time_s=self.clock.now_s(),
            state="loading",
            state_detail=loader.state_detail if loader else "",
            model_name=name,
            progress=loader.progress if loader else 1.0,
            speed=self.motion.speed,
            settings={path: get_setting(self.config, path) for path in all_settings()},
            weight_format=self.config.model.weight_format,
            block_size=self.config.cache.block_size,
        )

    def set_threads(self) -> None:
        """Threads of torch: the setting, else all cores, less one while a viewer needs a core."""
        if not self.host.is_ready:
            return
        import torch

        cores = len(os.sched_getaffinity(0))
        automatic = max(1, cores - 1) if self.transport.has_viewers else cores
        wanted = self.config.model.num_threads or automatic
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)

    def _loaded(self, loader: Loader) -> None:
        self.loader = None
        reload, self._reload = self._reload, None
        try:
            if loader.model is None:
                raise loader.error or WorkbenchError("the model could not be loaded")
            self.host.adopt(loader.config, loader.model)
        except WorkbenchError as error:
            if reload is None:
                raise
            self.transport.refuse(*reload[0], error)
        else:
            if reload is not None:
                call, started_s = reload
                milliseconds = (self.wall.now_s() - started_s) * 1e3
                self.transport.answer(*call, self.host.reloaded(self.config, milliseconds))
            self.config = loader.config
        settle_heap()
        self.set_threads()
        self.set_paused(self.paused)
        self.handler.handle_parked()

    def _work(self) -> bool:
        """One step, or an integrity check when there is none; whether time was spent."""
        if not self.paused and self.motion.due_in_s(self.wall.now_s()) == 0.0:
            if self.step_once():
                self._check_if_quick()
                return True
            self.clock.resume()  # arrivals go by the clock, in slow motion too
        if self._unchecked and (self.paused or not self.host.engine.has_work()):
            self._check()
        return False

    def _check_if_quick(self) -> None:
        since_s = self.wall.now_s() - self._checked_s
        if since_s > _BUSY_CHECK_INTERVAL_S and self._check_took_s < _QUICK_CHECK_S:
            self._check()

    def _check(self) -> None:
        started_s = self.wall.now_s()
        self.host.check()
        self._checked_s = self.wall.now_s()
        self._check_took_s = self._checked_s - started_s
        self._unchecked = False
        self.pacer.touch()

    def show_now(self) -> None:
        """Send a frame to the viewers, if there are any, whenever the last one was."""
        if self.transport.has_viewers:
            self.pacer.hurry()
            self._send_frame_if_due()

    def _send_frame_if_due(self) -> None:
        if self.loader is not None:
            self.pacer.touch()
        now_s = self.wall.now_s()
        if self.transport.has_viewers and self.pacer.due_in_s(now_s) == 0.0:
            self.transport.publish_frame(self.frame())
            self.pacer.sent(now_s)

    def _idle_wait_s(self) -> float:
        if self.loader is not None:
            return _LOADING_POLL_S
        now_s = self.wall.now_s()
        waits = [_MAX_WAIT_S]
        if self.transport.has_viewers:
            waits.append(self.pacer.due_in_s(now_s))
        if not self.paused:
            if self.host.engine.has_work():
                waits.append(self.motion.due_in_s(now_s))
            arrival_s = self.host.planner.next_due_in_s()
            waits += [] if arrival_s is None else [max(arrival_s, 0.001)]
        return min(waits)


def _no_tables() -> Any:
    import numpy as np

    return np.zeros(0, np.int32)


def main(arguments: list[str]) -> int:
    """Run one engine process on the sockets of a directory; returns its exit code."""
    endpoints = Endpoints(arguments[0])
    options = msgspec.json.decode(endpoints.options_file.read_bytes(), type=LaunchOptions)
    try:
        server = EngineServer(endpoints, options)
        _end_with_parent(server)
        server.run()
    except Exception as error:
        traceback.print_exc()
        _write_crash(endpoints, error)
        return EXIT_CRASHED
    return 0


def _end_with_parent(server: EngineServer) -> None:
    """Stop on SIGTERM and when the parent's end of our standard input closes."""

    def stop(signum: int = 0, frame: FrameType | None = None) -> None:
        server.stopping = True

    def watch() -> None:
        while os.read(0, 4096):
            pass
        stop()
        # A step may take long; without a parent nobody waits for it.
        threading.Event().wait(_GRACE_S)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _write_crash(endpoints: Endpoints, error: Exception) -> None:
    """One line that the client shows; the traceback is in the log."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, WorkbenchError):
        text = f"{type(error).__name__}: {text}"
    endpoints.crash_file.write_text(text[:1000])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
