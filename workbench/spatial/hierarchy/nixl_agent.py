"""NIXL, NVIDIA's library of transfers between inference engines (optional), as the tiers use it.

    plug-in    there is                              a batch is one transfer, which either ends
    POSIX      a file: (offset, bytes, descriptor)   whole or fails whole: its parts are then
    OBJ        an object: (offset, bytes, number)    tried another way
    UCX        another agent's memory: (address, bytes, 0)

Works without a GPU. What is here is tested with nixl-cu12 1.5.1. No agent has a thread of its own
for progress: with one, UCX spins on a whole core (1.8 s of CPU in 2 idle seconds).
"""

import importlib
import importlib.util
import logging
import os
import secrets
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from workbench.spatial.hierarchy.aligned import address
from workbench.spatial.hierarchy.medium import MediumFault

PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")  # modules, those of the wheels first
POLL_S = {"POSIX": 0.00005, "UCX": 0.00005, "OBJ": 0.0005}
UNLESS_SET = {
    "NIXL_LOG_LEVEL": "FATAL",  # faults are told in words of our own
    "UCX_LOG_LEVEL": "fatal",  # UCX would print them to standard output
    "UCX_MODULES": "^ib",  # with the wheel's Infiniband module a process crashes as it ends
}
Here = list[tuple[int, int]]
There = list[tuple[int, int, int]]


def load_nixl() -> ModuleType:
    """NIXL's interface; MediumFault with one sentence where it is not installed or cannot load."""
    found = next((name for name in PACKAGES if importlib.util.find_spec(name)), None)
    if found is None:
        raise MediumFault(
            "not_installed",
            "NIXL is not installed: run pip install 'kv-workbench[transports]', or choose another "
            "transport",
        )
    for name, value in UNLESS_SET.items():
        os.environ.setdefault(name, value)
    try:
        module = importlib.import_module(f"{found}._api")
    except (ImportError, OSError) as error:
        raise MediumFault("not_installed", f"NIXL cannot be loaded here ({error})") from None
    logging.getLogger("nixl").setLevel(logging.WARNING)  # it greets on standard output
    return module


class NixlAgent:
    """An agent with one plug-in, and what is registered with it; threads take turns."""

    def __init__(self, plugin: str, options: dict[str, str]) -> None:
        api = load_nixl()
        config = api.nixl_agent_config(
            enable_prog_thread=False,
            backends=[],
            sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
        )
        self._held: list[np.ndarray] = []
        self.poll_s = POLL_S[plugin]
        try:
            self._agent: Any = api.nixl_agent(f"kvw-{secrets.token_hex(8)}", config)
            self._agent.create_backend(plugin, options)
        except Exception as error:  # its bindings raise classes of their own, one a fault
            raise MediumFault(
                "not_installed",  # its class alone: its text may tell what was given, secrets too
                f"NIXL's plug-in {plugin} cannot be used here ({type(error).__name__})",
            ) from None

    def __del__(self) -> None:
        self._agent = None  # before the memory that an unfinished transfer may still write to

    def register(self, where: str, regions: list[tuple[int, int, int, str]]) -> Any:
        """Make (address or 0, bytes, number, name) known as FILE, OBJ or DRAM, until `forget`.

        MediumFault where it cannot be.
        """
        try:
            return self._agent.register_memory(regions, where)
        except Exception as error:  # its bindings' own classes
            raise MediumFault("io_error", f"NIXL cannot register this ({error})") from None

    def forget(self, registered: Any) -> None:
        """Undo a `register`."""
        self._agent.deregister_memory(registered)

    def hold(self, memory: np.ndarray) -> None:
        """Register uint8 [num_bytes] and keep it as long as the agent lives."""
        self._held.append(memory)
        self.register("DRAM", [(address(memory), memory.nbytes, 0, "")])

    def metadata(self) -> bytes:
        """What another agent needs to move bytes to and from the memory held here."""
        return bytes(self._agent.get_agent_metadata())

    def join(self, metadata: bytes) -> str:
        """Know another agent by its metadata; its name. MediumFault where those are no such."""
        try:
            name = self._agent.add_remote_agent(metadata)
        except Exception as error:  # its bindings' own classes
            raise MediumFault("foreign", f"NIXL knows no such agent ({error})") from None
        return name.decode() if isinstance(name, bytes) else str(name)

    def progress(self) -> None:
        """Do for other agents' transfers what their network leaves to us."""
        self._agent.get_new_notifs()

    def begin(
        self, write: bool, here: Here, where: str, there: There, remote: str = ""
    ) -> "NixlTransfer":
        """Start to move equal ranges between memory and a registered place.

        With `remote` the place is that agent's, and the memory here is `hold`'s.
        """
        return NixlTransfer(self._agent, self.poll_s, write, here, where, there, remote)


class NixlTransfer:
    """One batch on its way; `wait` has to be called before its memory may go."""

    def __init__(
        self,
        agent: Any,
        poll_s: float,
        write: bool,
        here: Here,
        where: str,
        there: There,
        remote: str,
    ) -> None:
        self._agent = agent
        self._poll_s = poll_s
        self._memory = self._handle = None
        try:
            if not remote:
                regions = [(at, size, 0, "") for at, size in here]
                self._memory = agent.register_memory(regions, "DRAM")
            self._handle = agent.initialize_xfer(
                "WRITE" if write else "READ",
                agent.get_xfer_descs([(at, size, 0) for at, size in here], "DRAM"),
                agent.get_xfer_descs(there, where),
                remote or agent.name,
            )
            self._state = agent.transfer(self._handle)
        except Exception:  # its bindings' own classes: whatever it is, the batch has not moved
            self._state = "ERR"

    def wait(self, in_time: Callable[[], bool] = lambda: True) -> bool:
        """Block until it has ended, or is `adrift` out of time; whether all of it has moved."""
        while self._state == "PROC":
            if not in_time():
                return False
            time.sleep(self._poll_s)
            try:
                self._state = self._agent.check_xfer_state(self._handle)
            except Exception:  # a short read is one, too
                self._state = "ERR"
        if self._handle is not None:
            self._agent.release_xfer_handle(self._handle)
        if self._memory is not None:
            self._agent.deregister_memory(self._memory)
        return self._state == "DONE"

    @property
    def adrift(self) -> bool:
        """Whether it was given up on its way: bytes may move until the agent is gone."""
        return bool(self._state == "PROC")
