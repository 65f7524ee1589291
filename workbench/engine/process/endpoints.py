"""What an engine process is started with, and where its sockets and files lie."""

from pathlib import Path
from typing import Any

import msgspec


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process is started with, as a file in its socket directory.

    `random_layers` > 0 builds a small random model with that many layers (a byte vocabulary)
    instead of loading one. `policies`: texts of the user's own files by name, run first.
    `kv_events`: where KV events are published, `kv_events_replay`: where old ones are asked for;
    empty for nowhere. `first_request_number` and `last_event_seq` go on after a restart.
    """

    changes: dict[str, Any] = {}  # settings that differ from the defaults
    random_layers: int = 0
    random_seed: int = 0
    first_request_number: int = 1
    last_event_seq: int = 0
    paused: bool = False
    speed: float = 1.0
    policies: dict[str, str] = {}
    kv_events: str = ""
    kv_events_replay: str = ""


class Endpoints(msgspec.Struct, frozen=True):
    """Where the sockets and files of one engine process lie."""

    directory: str

    @property
    def commands(self) -> str:
        """Address of the command socket."""
        return f"ipc://{self.directory}/commands"

    @property
    def frames(self) -> str:
        """Address of the frame socket."""
        return f"ipc://{self.directory}/frames"

    @property
    def outputs(self) -> str:
        """Address of the token socket."""
        return f"ipc://{self.directory}/outputs"

    @property
    def options_file(self) -> Path:
        """LaunchOptions as JSON."""
        return Path(self.directory) / "options.json"

    @property
    def crash_file(self) -> Path:
        """Written by a process that ends because of an error: one line."""
        return Path(self.directory) / "crash.txt"

    @property
    def log_file(self) -> Path:
        """What the process printed."""
        return Path(self.directory) / "engine.log"
