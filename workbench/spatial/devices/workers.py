"""One process a rank, with a pipe to each; whatever happens to one, all of them end.

parent ── pipe ──► rank 0 ─┐
       ── pipe ──► rank 1 ─┤ gloo over loopback, or NCCL with a GPU a rank
       ── pipe ──► rank n ─┘ met at a file in a private folder
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec
import psutil

from workbench.clock import Clock, RealClock
from workbench.errors import WorkbenchError
from workbench.spatial.devices.protocol import Failed, Question, Reply

WORKER_MODULE = "workbench.spatial.devices.rank_worker"
_SHUTDOWN_S = 3.0
_GRACE_S = 0.5  # a rank that dies takes the others' collectives with it: hear all of them


class DeviceError(WorkbenchError):
    """A rank died, failed or does not answer; all ranks of its group have been ended."""


class Workers:
    """`num_ranks` processes of one thread each; `ask` puts a question to each and awaits all.

    Their standard input ends when this process does, by whatever signal, and so do they. OSError
    if a process or the folder cannot be made.
    """

    def __init__(self, num_ranks: int, clock: Clock | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kv-devices-"))  # mode 0700
        self._clock = clock or RealClock()
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._finalizer = weakref.finalize(
            self, _end, self._pipes, self._processes, self.folder
        )  # before the first process: a failed start leaves none behind
        self._decoder = msgspec.msgpack.Decoder(Reply)
        try:
            for rank in range(num_ranks):
                self._start(rank)
        except BaseException:
            self.close()
            raise

    @property
    def store_file(self) -> str:
        """Where the ranks meet."""
        return str(self.folder / "meeting")

    @property
    def process_ids(self) -> list[int]:
        """Of the ranks, in order."""
        return [process.pid for process in self._processes]

    @property
    def alive(self) -> bool:
        """Whether questions can be asked."""
        return self._finalizer.alive

    def ask(self, questions: Sequence[Question], timeout_s: float, what: str) -> list[Reply]:
        """One question for each rank, and their replies in the order of the ranks.

        Raises DeviceError, after ending every rank, where one died, failed or was not done within
        `timeout_s`; `what` says during what.
        """
        if not self.alive:
            raise DeviceError(f"the ranks have ended before {what}: make a new group")
        try:
            replies, lost = self._await(questions, timeout_s)
        except BaseException:  # interrupted: a later question would get this one's reply
            self._kill()
            raise
        late = [rank for rank in range(len(questions)) if rank not in replies and rank not in lost]
        failed = {rank: reply for rank, reply in replies.items() if isinstance(reply, Failed)}
        if lost or failed or late:
            error = self._error(sorted(lost), failed, late, timeout_s, what)
            self._kill()
            raise error
        return [replies[rank] for rank in range(len(questions))]

    def close(self) -> None:
        """End every process and remove the folder; twice is harmless."""
        self._finalizer()

    def _await(
        self, questions: Sequence[Question], timeout_s: float
    ) -> tuple[dict[int, Reply], set[int]]:
        """Replies by rank, and the ranks whose pipe has ended; others were late."""
        lost: set[int] = set()
        for rank, question in enumerate(questions):
            try:
                self._pipes[rank].send_bytes(msgspec.msgpack.encode(question))
            except OSError:
                lost.add(rank)
        replies: dict[int, Reply] = {}
        deadline = self._clock.now_s() + timeout_s
        while len(replies) + len(lost) < len(questions):
            if lost or any(isinstance(reply, Failed) for reply in replies.values()):
                deadline = min(deadline, self._clock.now_s() + _GRACE_S)
            waiting = {
                self._pipes[rank]: rank
                for rank in range(len(questions))
                if rank not in replies and rank not in lost
            }
            ready = wait(list(waiting), max(0.0, deadline - self._clock.now_s()))
            if not ready:
                break
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    replies[rank] = self._decoder.decode(self._pipes[rank].recv_bytes())
                except (EOFError, OSError):
                    lost.add(rank)
        return replies, lost

    def _kill(self) -> None:
        """End every process at once: they may be waiting for a rank that is gone."""
        for process in self._processes:
            process.kill()
        self.close()

    def _start(self, rank: int) -> None:
        ours, theirs = Pipe()
        with theirs, (self.folder / f"rank-{rank}.log").open("wb") as log:
            self._pipes.append(ours)
            # A session of its own keeps Ctrl-C in the terminal ours.
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER_MODULE, str(theirs.fileno()), str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._processes.append(process)

    def _error(
        self, lost: list[int], failed: dict[int, Failed], late: list[int], timeout_s: float,
        what: str,
    ) -> DeviceError:  # fmt: skip
        """The likeliest cause: a death, else a failure of its own, else one of a link."""
        end = "all ranks were ended; make a new group"
        if lost:
            ranks = " and ".join(f"{self._name(rank)} {self._death(rank)}" for rank in lost)
            return DeviceError(f"{ranks} during {what}: {end}")
        if failed:
            rank = min(failed, key=lambda at: (failed[at].by_link, at))
            return DeviceError(
                f"{self._name(rank)} failed during {what} ({failed[rank].text}): {end}"
            )
        states = " and ".join(f"{self._name(rank)}, {self._status(rank)}," for rank in late)
        return DeviceError(f"{states} did not answer within {timeout_s:g} s during {what}: {end}")

    def _name(self, rank: int) -> str:
        return f"rank {rank} (process {self._processes[rank].pid})"

    def _death(self, rank: int) -> str:
        try:
            status = self._processes[rank].wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        lines = (self.folder / f"rank-{rank}.log").read_text(errors="replace").strip().splitlines()
        return f"ended with status {status} ({lines[-1][:200] if lines else 'no message'})"

    def _status(self, rank: int) -> str:
        try:
            return str(psutil.Process(self._processes[rank].pid).status())
        except psutil.Error:
            return "gone"


def _environment() -> dict[str, str]:
    """One thread, huge pages as the engine has them, and gloo on loopback alone."""
    environment = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} | dict(os.environ)
    environment |= {"OMP_NUM_THREADS": "1"}
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            environment["GLOO_SOCKET_IFNAME"] = name
    return environment


def _end(pipes: list[Connection], processes: list["subprocess.Popen[bytes]"], folder: Path) -> None:
    """Ask all to leave, by closing their pipes together; after a while by force."""
    while pipes:
        pipes.pop().close()
    patience = _SHUTDOWN_S
    for process in processes:
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            patience = 0.0  # the others had as long
        if process.stdin is not None:
            process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
