"""The one engine of this dashboard process, shared by all tabs, and who drives it."""

import fcntl
import os
import threading
from dataclasses import dataclass, field
from typing import IO

from app.driver import Driver
from app.quality.jobs import QualityJobs
from app.tiers.device_jobs import DeviceJobs
from workbench.client import EngineClient
from workbench.config import EngineConfig
from workbench.model.fetch import cache_dir

FIRST_WORKLOAD = "shared_chat"
RANDOM_LAYERS_VARIABLE = "KV_WORKBENCH_RANDOM_LAYERS"  # a small random model, for tests
KV_EVENTS_VARIABLE = "KV_WORKBENCH_KV_EVENTS"  # where KV events are published
KV_EVENTS_REPLAY_VARIABLE = "KV_WORKBENCH_KV_EVENTS_REPLAY"  # where missed ones are asked for


@dataclass
class EngineOwner:
    """Client, driver, jobs, and whether another dashboard here runs an engine too.

    `notice` is the sentence about that other engine, empty if there is none.
    """

    client: EngineClient
    driver: Driver
    notice: str = ""
    quality: QualityJobs = field(default_factory=QualityJobs)
    devices: DeviceJobs = field(default_factory=DeviceJobs)
    _lock_file: IO[str] | None = field(default=None, repr=False)

    @property
    def is_second(self) -> bool:
        """Whether another engine ran already when this one started."""
        return bool(self.notice)

    def close(self) -> None:
        """End the engine process, and those of the jobs that run."""
        self.quality.close()
        self.devices.close()
        self.client.close()
        if self._lock_file is not None:
            self._lock_file.close()


class _Holder:
    """Keeps the owner for scripts that Streamlit runs again and again in threads of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner: EngineOwner | None = None


_HOLDER = _Holder()  # Streamlit offers no other way from the server's lifespan to its scripts


def get_owner() -> EngineOwner:
    """The owner; starts the engine if it does not run yet."""
    with _HOLDER.lock:
        if _HOLDER.owner is None:
            _HOLDER.owner = _start()
        return _HOLDER.owner


def close_owner() -> None:
    """End the engine, if one was started."""
    with _HOLDER.lock:
        owner, _HOLDER.owner = _HOLDER.owner, None
    if owner is not None:
        owner.close()


def _start() -> EngineOwner:
    lock_file, notice = _lock()
    layers = int(os.environ.get(RANDOM_LAYERS_VARIABLE) or 0)
    client = EngineClient.start(
        EngineConfig(),
        random_layers=layers,
        kv_events=os.environ.get(KV_EVENTS_VARIABLE, ""),
        kv_events_replay=os.environ.get(KV_EVENTS_REPLAY_VARIABLE, ""),
    )
    client.start_workload_soon(FIRST_WORKLOAD)
    return EngineOwner(client, Driver(), notice, _lock_file=lock_file)


def _lock() -> tuple[IO[str] | None, str]:
    """The lock of the first dashboard, or the sentence about the one that holds it.

    The lock only tells of another engine; without a writable cache folder there is none.
    """
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        file = (cache_dir() / "dashboard.lock").open("a+")
    except OSError:
        return None, ""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        file.close()
        return None, (
            f"Another dashboard (process {pid}) runs an engine on this machine: this one starts a "
            "second engine, and the two slow each other down. Close one for figures that count."
        )
    file.seek(0)
    file.truncate()
    file.write(str(os.getpid()))
    file.flush()
    return file, ""
