"""Mooncake Store's own library (optional): which module, which address, and what its codes mean.

    mooncake://host:port            its master; other clients bring the memory
    mooncake://host:port?admin=N    and the port of its HTTP interface, 9003 if not named

What is here is tested with mooncake-transfer-engine-non-cuda 0.3.13.
"""

import importlib.util
import os
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from workbench.settings.addresses import secret_part
from workbench.spatial.hierarchy.addresses import is_loopback
from workbench.spatial.hierarchy.medium import MediumFault

ADMIN_PORT = 9003
TAKEN, FULL = -705, -200
_REASONS = {
    FULL: "full",
    -600: "truncated",  # a range beyond the object's end
    -703: "gone",  # it is being written
    -704: "gone",
    TAKEN: "changed",
    -706: "leased",
    -707: "expired",  # looked at after the copy too
    -800: "unreachable",
    -900: "unreachable",
}


@dataclass(frozen=True)
class MasterAddress:
    """Where a master listens: for its clients, and for HTTP."""

    host: str
    port: int
    admin_port: int = ADMIN_PORT

    @property
    def local_name(self) -> str:
        """What this machine is called by the master's; nothing is sent to find out."""
        if is_loopback(self.host):
            return "127.0.0.1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.host, self.port))
            name: str = probe.getsockname()[0]
            return name


def parse_address(address: str) -> MasterAddress:
    """The address of a master; MediumFault with one sentence if it is none."""
    told = "give mooncake://host:port of its master"
    if part := secret_part(address):
        raise MediumFault("address", f"the address of a Mooncake Store holds no {part}: {told}")
    try:
        parts = urlsplit(address)
        admin = parse_qs(parts.query, strict_parsing=bool(parts.query)).pop("admin", ["9003"])
        if parts.scheme == "mooncake" and parts.hostname and parts.port and not parts.path:
            return MasterAddress(parts.hostname, parts.port, int(admin[0]))
    except ValueError:
        pass  # a port or query that is no number: the sentence below says what is expected
    raise MediumFault("address", f"the address of a Mooncake Store: {told}")


def load_store() -> Any:
    """The class of its client; MediumFault with one sentence where it is not installed."""
    if importlib.util.find_spec("mooncake") is None:
        raise MediumFault(
            "not_installed",
            "Mooncake is not installed: run pip install 'kv-workbench[transports]', or choose "
            "another shared tier",
        )
    os.environ.setdefault("GLOG_minloglevel", "3")  # its library reads this when it is loaded
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    try:
        from mooncake.store import MooncakeDistributedStore
    except (ImportError, OSError) as error:
        raise MediumFault("not_installed", f"Mooncake cannot be loaded here ({error})") from None
    return MooncakeDistributedStore


def reason_of(code: int) -> str:
    """The word a negative code is counted under."""
    return _REASONS.get(code, "io_error")
