"""Addresses of stores that lie outside this process."""

import ipaddress


def is_loopback(host: str | None) -> bool:
    """Whether a host's name means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
