"""Addresses of stores that lie outside this process: what they may name, and what they must not."""

import ipaddress


def is_loopback(host: str | None) -> bool:
    """Whether a host's name means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def has_userinfo(address: str) -> bool:
    """Whether an address holds a user or a password, which would show in settings and logs."""
    return "@" in address.split("://")[-1].split("/")[0]
