"""What an address in the settings may not hold, since settings are shown, saved and linked to."""

import re
import unicodedata

_FILES = ("file", "ipc", "unix")  # schemes of paths on this machine
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_ADMIN_PORT = re.compile(r"(mooncake://[^?#]*)\?admin=\d+")  # the one query that means something


def secret_part(address: str) -> str:
    """The part of an address that can hold a secret, in words; empty where there is none.

    "user or password", "query" or "fragment". `/folder` is a path, whatever letters it has, and so
    is what follows `file://` and the like, but for a query or fragment. Whoever refuses an address
    does not repeat it.
    """
    if address.startswith("/"):
        return ""
    address = unicodedata.normalize("NFKC", address)  # there are other signs for @ and ?
    scheme, separator, rest = address.partition("://")
    rest = rest if separator else scheme
    before, *_ = re.split(r"[/?#\\]", rest, maxsplit=1)
    path = scheme in _FILES and rest.startswith("/")
    if not path and ("@" in rest or not _HOST.fullmatch(before)):
        return "user or password"  # also one with a slash in it, or without a host behind it
    if "?" in rest and not _ADMIN_PORT.fullmatch(address):
        return "query"
    return "fragment" if "#" in rest else ""
