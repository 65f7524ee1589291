"""Which Valkey an address names, how to reach it, and what went wrong, without any secret.

`valkey://host:port/db` (or redis://), `valkeys://` with TLS (or rediss://), `unix:///path`. The
password comes from the environment variable KV_WORKBENCH_POOL_PASSWORD alone.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from valkey import exceptions as faults
from valkey.backoff import NoBackoff
from valkey.retry import Retry

from workbench.settings.addresses import secret_part
from workbench.spatial.hierarchy.medium import MediumFault

PASSWORD = "KV_WORKBENCH_POOL_PASSWORD"
SCHEMES = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}  # with TLS or not
CONNECT_S = 1.0


def client_options(
    address: str, timeout_s: float, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Arguments of `valkey.Valkey`; MediumFault with one sentence for an address it cannot take."""
    if part := secret_part(address):
        raise MediumFault(
            "address",
            f"the address of a pool may not hold a {part}: set {PASSWORD} instead",
        )
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(CONNECT_S, timeout_s),
        "retry": Retry(NoBackoff(), 0),  # a fault is a miss, which costs less than waiting
        "password": environment.get(PASSWORD) or None,
    }
    if address.startswith("unix:///"):
        return options | {"unix_socket_path": address.removeprefix("unix://")}
    try:
        parts = urlsplit(address)
        host, port, path = parts.hostname, parts.port or 6379, parts.path.strip("/")
        fine = parts.scheme in SCHEMES and host and (not path or path.isdigit())
    except ValueError:
        fine = False
    if not fine:
        raise MediumFault(
            "address",
            "the address of a pool: give valkey://host:port, valkeys://host:port (TLS) "
            "or unix:///path",
        )
    return options | {
        "host": host, "port": port, "db": int(path or 0), "ssl": SCHEMES[parts.scheme],
    }  # fmt: skip


def fault_reason(error: Exception) -> str:
    """The word a fault is counted under; an error's own text may hold anything, so it stays."""
    if isinstance(error, MediumFault):
        return error.reason
    if isinstance(error, (faults.AuthenticationError, faults.NoPermissionError)):
        return "unauthorised"
    if isinstance(error, faults.InvalidResponse) or "Protocol Error" in str(error):
        return "foreign"
    if isinstance(error, (faults.ConnectionError, faults.TimeoutError, OSError)):
        return "unreachable"
    if isinstance(error, faults.OutOfMemoryError) or str(error).startswith("OOM"):
        return "full"
    if isinstance(error, faults.ReadOnlyError):
        return "read_only"
    return "io_error"


def refusal(place: str, reason: str, has_password: bool) -> MediumFault:
    """Why a pool cannot be opened, as one sentence."""
    sentences = {
        "unauthorised": (
            f"the pool at {place} did not accept the password in {PASSWORD}"
            if has_password
            else f"the pool at {place} asks for a password: set {PASSWORD} in the environment"
        ),
        "unreachable": f"no pool answers at {place}: start a Valkey server there",
        "foreign": f"what answers at {place} is no Valkey server: choose another address",
    }
    return MediumFault(
        reason, sentences.get(reason, f"the pool at {place} cannot be used ({reason})")
    )
