"""Part of `workbench bench tiers`: what the media of the lower tiers move, each alone.

Pages of the default model are put, read whole and read by one layer. S3 is a real HTTP server in
Python on this machine (moto): right for the protocol's shape, not for what a bucket can do.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from workbench.cache.page_copy import slice_checksums
from workbench.clock import RealClock
from workbench.errors import WorkbenchError
from workbench.lab.bench_runs import median, refused
from workbench.lab.disk_tier_bench import succeed
from workbench.lab.figures import Figure
from workbench.lab.host_copy_bench import NUM_SLICES, PAGE_BYTES
from workbench.spatial.hierarchy.medium import Get, Medium, PageRecord, Put
from workbench.spatial.hierarchy.object_store import ObjectStore
from workbench.spatial.hierarchy.shared_store import SharedStoreClient
from workbench.spatial.hierarchy.valkey_pool import ValkeyPool

Progress = Callable[[str], None]
BATCH = 32  # pages a call, as a tier's thread hands them over
BUCKET = "kv-workbench-bench"
SERVER_WAIT_S = 30.0


@dataclass(frozen=True)
class MediaPlan:
    """Pages of each medium, and how often they are put and read."""

    num_pages: int = 64
    rounds: int = 3


QUICK = MediaPlan(num_pages=4, rounds=1)


def measure_media(progress: Progress, plan: MediaPlan) -> list[Figure]:
    """MB/s and operations per second of a store process, Valkey, a folder of objects, and S3."""
    capacity = 2 * plan.num_pages * (PAGE_BYTES + 8192) + (16 << 20)
    opened: dict[str, Callable[[str], Medium]] = {
        "store": lambda folder: SharedStoreClient("", capacity),
        "valkey": lambda folder: ValkeyPool("", capacity),
        "folder": lambda folder: ObjectStore(folder, capacity),
    }
    figures = []
    for name, make in opened.items():
        with tempfile.TemporaryDirectory(prefix="kv-workbench-media-") as folder:
            figures += _measure(progress, name, make(folder), plan)
    if importlib.util.find_spec("moto") is None:
        return figures + refused([f"media_s3_{what}" for what in _NAMES], "moto is not installed")
    with own_bucket() as address:
        figures += _measure(progress, "s3", ObjectStore(address, capacity), plan)
    return figures


_NAMES = ("put_mb_s", "get_mb_s", "layer_gets_per_s")


def _measure(progress: Progress, name: str, medium: Medium, plan: MediaPlan) -> list[Figure]:
    passes = Passes(plan.num_pages)
    size = passes.layer_bytes
    try:
        seconds = [passes.seconds(medium) for _ in range(plan.rounds)]
        passes.verify(medium)
        place = medium.place
    finally:
        medium.close(keep=False)
    put_s, get_s, layer_s = (median(list(each)) for each in zip(*seconds, strict=True))
    total = plan.num_pages * PAGE_BYTES / 1e6
    note = f"{plan.num_pages} pages of {PAGE_BYTES:,} bytes, {BATCH} a call; {place}"
    if name == "s3":
        note += "; a server in Python on this machine, so no figure of a bucket"
    progress(f"{name}: {total / put_s:,.0f} MB/s down, {total / get_s:,.0f} MB/s up")
    values = (
        (total / put_s, "MB/s", f"{plan.num_pages / put_s:,.0f} puts/s; {note}"),
        (total / get_s, "MB/s", f"{plan.num_pages / get_s:,.0f} gets/s; {note}"),
        (plan.num_pages / layer_s, "1/s", f"one layer of {size:,} bytes of each page; {note}"),
    )
    return [
        Figure(name=f"media_{name}_{what}", value=value, unit=unit, note=told)
        for what, (value, unit, told) in zip(_NAMES, values, strict=True)
    ]


class Passes:
    """Pages of the default model's size, and whole passes over a medium with them."""

    def __init__(self, num_pages: int) -> None:
        self._puts = [_page(number) for number in range(num_pages)]
        self._outs = [np.empty(PAGE_BYTES, np.uint8) for _ in range(BATCH)]
        self.layer_bytes = size = PAGE_BYTES // NUM_SLICES
        self._layers = [
            Get(put.record, 7 * size, self._outs[at % BATCH][:size])
            for at, put in enumerate(self._puts)
        ]

    def seconds(self, medium: Medium) -> tuple[float, float, float]:
        """Put all pages, get them whole, and get one layer of each."""
        clock, puts = RealClock(), self._puts
        medium.remove([put.record.key for put in puts])
        times = [clock.now_s()]
        for first in range(0, len(puts), BATCH):
            succeed(medium.put(puts[first : first + BATCH]))
        times.append(clock.now_s())
        for first in range(0, len(puts), BATCH):
            batch = zip(puts[first : first + BATCH], self._outs, strict=False)
            succeed(medium.get([Get(put.record, 0, out) for put, out in batch]))
        times.append(clock.now_s())
        for first in range(0, len(puts), BATCH):
            succeed(medium.get(self._layers[first : first + BATCH]))
        times.append(clock.now_s())
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]

    def verify(self, medium: Medium) -> None:
        """Read a page and compare its checksums (WorkbenchError)."""
        put, out = self._puts[-1], self._outs[0]
        succeed(medium.get([Get(put.record, 0, out)]))
        if slice_checksums(out, NUM_SLICES) != put.record.checksums:
            raise WorkbenchError(f"{medium.place} gave wrong bytes: do not trust it")


def _page(number: int) -> Put:
    payload = np.random.default_rng(number).integers(0, 256, PAGE_BYTES, dtype=np.uint8)
    sums = slice_checksums(payload, NUM_SLICES)
    key = b"P" + number.to_bytes(32, "little")
    return Put(PageRecord(key, PAGE_BYTES, sums, PAGE_BYTES), payload)


# ---- a bucket of our own


@contextmanager
def own_bucket() -> Iterator[str]:
    """The address of a bucket on an S3 server of our own, with what it wants in the environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    needed = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in needed}
    try:
        _wait_for(port, server)
        os.environ.update(needed)
        _create_bucket(port)
        yield f"s3://{BUCKET}"
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        server.terminate()
        server.wait()


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    clock = RealClock()
    until_s = clock.now_s() + SERVER_WAIT_S
    while clock.now_s() < until_s and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise WorkbenchError("the S3 server of the bench did not start: is moto's server installed?")


def _create_bucket(port: int) -> None:
    from http.client import HTTPConnection

    link = HTTPConnection("127.0.0.1", port)
    link.request("PUT", f"/{BUCKET}", headers={"Host": f"127.0.0.1:{port}"})
    answer = link.getresponse()
    if answer.status != 200:
        raise WorkbenchError(f"the S3 server of the bench made no bucket (status {answer.status})")
    link.close()
