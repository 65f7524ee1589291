"""NIXL, NVIDIA's library of transfers between inference engines (optional), as the tiers use it.

    descriptors here  (address, bytes)          a batch is one transfer, which either ends whole or
    descriptors there (offset, bytes, number)   fails whole: its parts are then tried another way

Works without a GPU through its POSIX and OBJ plug-ins. What is here is tested with nixl-cu12 1.5.1.
"""

import importlib
import importlib.util
import logging
import secrets
import time
from types import ModuleType
from typing import Any

from workbench.spatial.hierarchy.medium import MediumFault

PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")  # modules, those of the wheels first
POLL_S = 0.00005
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
    try:
        module = importlib.import_module(f"{found}._api")
    except (ImportError, OSError) as error:
        raise MediumFault("not_installed", f"NIXL cannot be loaded here ({error})") from None
    logging.getLogger("nixl").setLevel(logging.WARNING)  # it greets on standard output
    return module


class NixlAgent:
    """An agent with one plug-in, and what is registered with it; one thread at a time."""

    def __init__(self, plugin: str, options: dict[str, str]) -> None:
        api = load_nixl()
        try:
            self._agent: Any = api.nixl_agent(
                f"kvw-{secrets.token_hex(8)}", api.nixl_agent_config(backends=[])
            )
            self._agent.create_backend(plugin, options)
        except Exception as error:  # its bindings raise classes of their own, one a fault
            raise MediumFault(
                "not_installed", f"NIXL's plug-in {plugin} cannot be used here ({error})"
            ) from None

    def register(self, where: str, regions: list[tuple[int, int, int, str]]) -> Any:
        """Make (address or 0, bytes, number, name) known as FILE, OBJ or DRAM, until `forget`."""
        return self._agent.register_memory(regions, where)

    def forget(self, registered: Any) -> None:
        """Undo a `register`."""
        self._agent.deregister_memory(registered)

    def begin(self, write: bool, here: Here, where: str, there: There) -> "NixlTransfer":
        """Start to move equal ranges between memory and a registered place."""
        return NixlTransfer(self._agent, write, here, where, there)


class NixlTransfer:
    """One batch on its way; `wait` has to be called before its memory may go."""

    def __init__(self, agent: Any, write: bool, here: Here, where: str, there: There) -> None:
        self._agent = agent
        self._memory = self._handle = None
        try:
            self._memory = agent.register_memory([(at, size, 0, "") for at, size in here], "DRAM")
            self._handle = agent.initialize_xfer(
                "WRITE" if write else "READ",
                agent.get_xfer_descs([(at, size, 0) for at, size in here], "DRAM"),
                agent.get_xfer_descs(there, where),
                agent.name,
            )
            self._state = agent.transfer(self._handle)
        except Exception:  # its bindings' own classes: whatever it is, the batch has not moved
            self._state = "ERR"

    def wait(self) -> bool:
        """Block until it has ended; whether all of it has moved."""
        while self._state == "PROC":
            time.sleep(POLL_S)
            try:
                self._state = self._agent.check_xfer_state(self._handle)
            except Exception:  # a short read is one, too
                self._state = "ERR"
        if self._handle is not None:
            self._agent.release_xfer_handle(self._handle)
        if self._memory is not None:
            self._agent.deregister_memory(self._memory)
        return self._state == "DONE"
