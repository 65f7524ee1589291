"""What the engine's process is started with."""

import os

# Weights are read whole at every step. In 4 KiB pages a decode step spends a tenth of its time on
# address translation; glibc asks for huge pages itself if told so before the process starts.
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def engine_environment() -> dict[str, str]:
    """This process's environment, with huge pages unless the user has tunables already."""
    return {"GLIBC_TUNABLES": HUGE_PAGES} | dict(os.environ)
