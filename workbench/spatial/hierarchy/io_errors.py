"""The words that faults of input and output are counted under, the same for every medium."""

import errno

_WORDS = {
    errno.ENOENT: "deleted",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.EROFS: "read_only",
    errno.EACCES: "unreadable",
    errno.EPERM: "unreadable",
    errno.ELOOP: "unreadable",
    errno.EISDIR: "foreign",
}


def fault_reason(error: Exception) -> str:
    """The word a fault is counted under: its own `reason` where it has one, else by errno."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason
    return _WORDS.get(getattr(error, "errno", 0) or 0, "io_error")
