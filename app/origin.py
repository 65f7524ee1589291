"""Who may open the live socket: pages that this server itself has served."""

import ipaddress
import socket
from urllib.parse import urlsplit


def is_own_page(origin: str | None, host: str | None, allowed_hosts: list[str]) -> bool:
    """Whether a socket with these headers comes from a page of this server.

    A browser always sends Origin; it must name the same host and port as Host. Without Origin it
    is no browser page. Host must be in `allowed_hosts` (`server.allowedHosts`: names, `*.domain`
    or `*`); if that is empty, an IP address, localhost or this machine's name, so that a foreign
    name pointed at this machine (DNS rebinding) does not count as ours.
    """
    if not host or not _host_allowed(host, allowed_hosts):
        return False
    if origin is None:
        return True
    return urlsplit(origin).netloc.lower() == host.lower()


def _host_allowed(host: str, allowed_hosts: list[str]) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if not allowed_hosts:
        return _is_address(name) or name in ("localhost", socket.gethostname().lower())
    for allowed in (entry.strip().lower().rstrip(".") for entry in allowed_hosts):
        if allowed in ("*", name) or (allowed.startswith("*.") and name.endswith(allowed[1:])):
            return True
    return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
