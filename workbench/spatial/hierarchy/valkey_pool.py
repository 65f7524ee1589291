"""A remote pool (InfiniStore's role) on a real Valkey: one string a page, header before payload.

    kvw1:<hex>    a shared page          kvw1-private:<hex>    a request's own, for an hour

Batches are pipelines, slices are GETRANGE. The server has its own cap and evicts by itself, so that
"gone" is a miss. Without an address the pool starts a server of its own.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import valkey
from valkey.exceptions import ValkeyError

from workbench.clock import RealClock
from workbench.spatial.hierarchy.batches import in_batches
from workbench.spatial.hierarchy.medium import Done, Get, MediumFault, PageRecord, Put, is_private
from workbench.spatial.hierarchy.record_header import (
    PROBE_BYTES,
    decode_header,
    header_bytes,
    needed_bytes,
    storage_name,
    total_bytes,
)
from workbench.spatial.hierarchy.valkey_address import client_options, fault_reason, refusal
from workbench.spatial.hierarchy.valkey_process import ValkeyProcess
from workbench.spatial.hierarchy.valkey_values import allocated_bytes, number, take, value_of

PAGES, PRIVATE = "kvw1:", "kvw1-private:"
PRIVATE_TTL_S = 3600  # those of an engine that died go by themselves
BATCH_BYTES = 4 * 1024 * 1024  # replies count as the server's memory until they are read
BATCH_KEYS = 512
START_S = 10.0
OVERHEAD_BYTES = 256  # key, object and entry of the table
_FAULTS = (ValkeyError, OSError, MediumFault)


class ValkeyPool:
    """A `Medium` on a Valkey server; `address` as in `valkey_address`, empty for a private one.

    MediumFault with one sentence if it does not answer or does not let us in.
    """

    shared = True
    persistent = False

    def __init__(
        self, address: str = "", capacity_bytes: int = 0, *, timeout_s: float = 2.0
    ) -> None:
        self._owner = secrets.token_bytes(16)
        self._own: set[bytes] = set()  # keys of what this process has put
        self._process: ValkeyProcess | None = None
        if not address:
            self._process = ValkeyProcess(capacity_bytes)
            options = client_options(f"unix://{self._process.socket_path}", timeout_s, {})
        else:
            options = client_options(address, timeout_s)
        self.place = "a Valkey of this engine's own" if self._process else address
        self.way = "Unix socket" if "unix_socket_path" in options else "TCP"
        self._client: Any = valkey.Valkey(**options)
        try:
            memory = self._open()
        except _FAULTS as error:
            self.close(keep=False)
            reason = fault_reason(error)
            if isinstance(error, MediumFault):
                raise
            raise refusal(self.place, reason, options["password"] is not None) from None
        self._jemalloc = str(memory.get("mem_allocator", "")).startswith("jemalloc")

    def charge_bytes(self, record: PageRecord) -> int:
        """What the server's allocator makes of a value of this size, and of its key."""
        return allocated_bytes(total_bytes(record), self._jemalloc) + OVERHEAD_BYTES

    def put(self, puts: Sequence[Put]) -> list[Done]:
        """Set values where there is none; a whole page of that key stays."""
        return self._batches(puts, lambda put: total_bytes(put.record), self._put)

    def get(self, gets: Sequence[Get]) -> list[Done]:
        """Read ranges, and the header of each page beside them."""
        return self._batches(gets, lambda get: get.out.nbytes, self._get)

    def remove(self, keys: Sequence[bytes]) -> list[Done]:
        """Delete values."""
        return self._batches(keys, lambda key: 0, self._remove)

    def probe(self, keys: Sequence[bytes]) -> list[PageRecord | None]:
        """Read the first KiB of each value, in one pipeline."""
        try:
            found = self._records([self._name(key) for key in keys])
        except _FAULTS as error:
            self._failed(error)
            return [None] * len(keys)
        return [
            record if record is not None and record.key == key else None
            for key, (record, _) in zip(keys, found, strict=True)
        ]

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Whole shared pages, longest unused first where the server counts that."""
        try:
            names = list(self._client.scan_iter(match=PAGES + "*", count=1000))
            idle = self._pipelined(names, lambda pipe, name: pipe.object("idletime", name))
            order = sorted(range(len(names)), key=lambda at: -number(idle[at]))
            names = [names[at] for at in order]
            for start in range(0, len(names), BATCH_KEYS):
                part = names[start : start + BATCH_KEYS]
                for name, (record, real_bytes) in zip(part, self._records(part), strict=True):
                    if record is not None and self._name(record.key).encode() == name:
                        yield record, real_bytes
        except _FAULTS as error:
            self._failed(error)

    def resize(self, capacity_bytes: int) -> bool:
        """A private server takes a new cap at once; that of another is not ours to set."""
        if self._process is None:
            return True
        try:
            self._client.config_set("maxmemory", self._process.resize(capacity_bytes))
        except _FAULTS as error:
            self._failed(error)
            return False
        return True

    @property
    def real_bytes(self) -> int:
        """Bytes of the pages that this process has put and the server still has, as it counts."""
        own = list(self._own)
        try:
            sizes = self._pipelined(
                [self._name(key) for key in own], lambda pipe, name: pipe.memory_usage(name, 0)
            )
        except _FAULTS as error:
            self._failed(error)
            return 0
        self._own -= {key for key, size in zip(own, sizes, strict=True) if size is None}
        return sum(number(size) for size in sizes)

    def close(self, keep: bool) -> None:
        """Delete the private pages and let the server go; a private one ends."""
        if self._own and self._process is None:
            self.remove([key for key in self._own if is_private(key)])
        self._client.close()
        if self._process is not None:
            self._process.close()

    @property
    def can_unplug(self) -> bool:
        """One of this engine's own."""
        return self._process is not None

    def unplug(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.unplug()

    def plug_in(self) -> None:
        """Start a server anew, which is empty."""
        if self._process is not None:
            self._process.plug_in()

    @property
    def can_fill(self) -> bool:
        """One of this engine's own."""
        return self._process is not None

    def fill_up(self) -> None:
        """Let the server evict nothing, and have no memory for more."""
        self._configure("maxmemory-policy", "noeviction")
        self._configure("maxmemory", 1)

    def make_room(self) -> None:
        """Give the server its memory again."""
        if self._process is not None:
            self._configure("maxmemory", self._process.capacity_bytes)
            self._configure("maxmemory-policy", "allkeys-lru")  # only now: it would evict all

    def _configure(self, name: str, value: int | str) -> None:
        try:
            self._client.config_set(name, value)
        except _FAULTS as error:
            self._failed(error)

    def _open(self) -> dict[str, Any]:
        """Talk to the server for the first time; a private one is given the time to start."""
        clock = RealClock()
        until_s = clock.now_s() + START_S
        while True:
            try:
                self._client.ping()
                memory: dict[str, Any] = self._client.info("memory")
                return memory
            except _FAULTS as error:
                process = self._process
                if process is None or fault_reason(error) != "unreachable":
                    raise
                if not process.alive:
                    line = process.last_line() or "it said nothing"
                    raise MediumFault("ended", f"the private pool ended: {line}") from None
                if clock.now_s() > until_s:
                    raise
                time.sleep(0.01)

    def _failed(self, error: Exception) -> str:
        if self._process is not None:
            self._process.revive()
        return fault_reason(error)

    def _name(self, key: bytes) -> str:
        return (PRIVATE if is_private(key) else PAGES) + storage_name(key, self._owner).hex()

    def _batches(
        self,
        items: Sequence[Any],
        size: Callable[[Any], int],
        run: Callable[[Sequence[Any]], list[Done]],
    ) -> list[Done]:
        done: list[Done] = []
        for part in in_batches([size(item) for item in items], BATCH_BYTES, BATCH_KEYS):
            try:
                done += run(items[part])
            except _FAULTS as error:
                done += [Done(self._failed(error))] * len(items[part])
        return done

    def _pipelined(self, items: Sequence[Any], queue: Callable[[Any, Any], Any]) -> list[Any]:
        """One command an item, one round trip for many; a refused command is its own answer."""
        answers: list[Any] = []
        for start in range(0, len(items), BATCH_KEYS):
            with self._client.pipeline(transaction=False) as pipe:
                for item in items[start : start + BATCH_KEYS]:
                    queue(pipe, item)
                answers += pipe.execute(raise_on_error=False)
        return answers

    def _records(self, names: Sequence[Any]) -> list[tuple[PageRecord | None, int]]:
        """Record and real bytes of each value that is a whole page."""

        def ask(pipe: Any, name: Any) -> None:
            pipe.getrange(name, 0, PROBE_BYTES - 1).strlen(name).memory_usage(name, 0)

        answers = self._pipelined(names, ask)
        found: list[tuple[PageRecord | None, int]] = []
        for at, name in enumerate(names):
            data, length, real_bytes = answers[3 * at : 3 * at + 3]
            found.append((self._record(name, data, length), number(real_bytes)))
        return found

    def _record(self, name: Any, data: Any, length: Any) -> PageRecord | None:
        if isinstance(data, Exception):
            if fault_reason(data) in ("unreachable", "unauthorised"):
                raise data
            return None
        try:
            if len(data) < needed_bytes(data):
                data = self._client.getrange(name, 0, needed_bytes(data) - 1)
            record = decode_header(data)
        except MediumFault:
            return None
        return record if total_bytes(record) == length else None

    def _put(self, puts: Sequence[Put]) -> list[Done]:
        names = [self._name(put.record.key) for put in puts]
        with self._client.pipeline(transaction=False) as pipe:
            for name, put in zip(names, puts, strict=True):
                ttl_s = PRIVATE_TTL_S if is_private(put.record.key) else None
                pipe.set(name, value_of(put), nx=True, ex=ttl_s).memory_usage(name, 0)
            answers = pipe.execute(raise_on_error=False)
        done: list[Done] = []
        for at, put in enumerate(puts):
            stored, real_bytes = answers[2 * at : 2 * at + 2]
            if stored is None:
                stored = self._settle_existing(names[at], put)
            if isinstance(stored, Exception):
                done.append(Done(fault_reason(stored)))
                continue
            self._own.add(put.record.key)
            done.append(Done("", number(real_bytes) or self.charge_bytes(put.record)))
        return done

    def _settle_existing(self, name: str, put: Put) -> Any:
        """A whole page that is there stays, since it is as good; anything else is replaced."""
        ((record, _),) = self._records([name])
        if record is not None and record.key == put.record.key:
            return True
        return self._client.set(name, value_of(put))

    def _get(self, gets: Sequence[Get]) -> list[Done]:
        begins = [header_bytes(get.record) for get in gets]
        with self._client.pipeline(transaction=False) as pipe:
            for get, begin in zip(gets, begins, strict=True):
                name = self._name(get.record.key)
                start = begin + get.offset
                # Header and payload lie side by side: one range where the payload's start is read.
                pipe.getrange(name, 0, begin - 1 + (get.out.nbytes if get.offset == 0 else 0))
                if get.offset:
                    pipe.getrange(name, start, start + get.out.nbytes - 1)
            answers = iter(pipe.execute(raise_on_error=False))
        return [
            Done(take(get, begin, next(answers), next(answers) if get.offset else None))
            for get, begin in zip(gets, begins, strict=True)
        ]

    def _remove(self, keys: Sequence[bytes]) -> list[Done]:
        answers = self._pipelined([self._name(key) for key in keys], lambda p, name: p.unlink(name))
        self._own.difference_update(keys)
        return [
            Done(fault_reason(answer)) if isinstance(answer, Exception) else Done()
            for answer in answers
        ]
