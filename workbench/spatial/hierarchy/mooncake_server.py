"""A private Mooncake Store as a process: its master, and the memory that the master hands out.

It ends when its standard input does, by whatever end of the process that started it.
"""

import argparse
import importlib.util
import os
import socket
import stat
import subprocess
import sys
import time

from workbench.clock import RealClock
from workbench.spatial.hierarchy.companion import watched
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.mooncake_library import load_store

READY = "the store is ready"
START_S = 15.0
COPY_BYTES = 16 * 1024 * 1024  # of its client, which copies nothing itself


def main() -> int:
    """Serve until standard input ends; 1 with one line if that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--admin-port", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    given = parser.parse_args()
    problem = ""
    master = subprocess.Popen(
        watched([master_binary(), *_master_flags(given.port, given.admin_port)]),
        stdin=subprocess.PIPE,
    )
    try:
        _wait_for(master, given.port)
        store = load_store()()
        code = store.setup(
            "127.0.0.1", "P2PHANDSHAKE", given.bytes, COPY_BYTES, "tcp", "",
            f"127.0.0.1:{given.port}",
        )  # fmt: skip
        if code:
            raise MediumFault("no_memory", f"{given.bytes} bytes cannot be given ({code})")
        print(READY, flush=True)
        sys.stdin.buffer.read()
        store.close()
    except MediumFault as fault:
        problem = str(fault)
    finally:
        assert master.stdin is not None
        master.stdin.close()
        master.wait()
    print(problem, flush=True)  # as the last line, which is what the engine tells
    return 1 if problem else 0


def master_binary() -> str:
    """Path of the wheel's master, executable."""
    found = importlib.util.find_spec("mooncake")
    if found is None or not found.submodule_search_locations:
        load_store()  # says so
        raise MediumFault("not_installed", "Mooncake has no master here")
    path = os.path.join(found.submodule_search_locations[0], "mooncake_master")
    if not os.access(path, os.X_OK):  # the wheel's own start script does the same
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


def _master_flags(port: int, admin_port: int) -> list[str]:
    return [
        f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={admin_port}",
        "--metrics_host=127.0.0.1", "--enable_metric_reporting=false",
    ]  # fmt: skip


def _wait_for(master: "subprocess.Popen[bytes]", port: int) -> None:
    clock = RealClock()
    until_s = clock.now_s() + START_S
    while clock.now_s() < until_s and master.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.02)
    raise MediumFault("ended", "the master of the store did not start")


if __name__ == "__main__":
    sys.exit(main())
