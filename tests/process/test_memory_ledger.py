"""The ledger of a real engine process beside what the operating system says of it from outside."""

import psutil
from process_helpers import finished, prompt, small_config

from workbench.client import EngineClient
from workbench.snapshot import Snapshot

MIB = 2**20


def claimed(snapshot: Snapshot, place: str = "process") -> int:
    return sum(line.num_bytes for line in snapshot.ledger if line.place == place)


def test_claims_never_pass_the_rss_whatever_the_budget() -> None:
    config = small_config(cache__hbm_budget_mib=4096.0, cache__block_size=64)
    client = EngineClient.start(config, wait=True, random_layers=2)
    try:
        process = psutil.Process(client.pid)
        first = client.snapshot()
        finished(client, client.submit(prompt("a few words " * 40, max_tokens=200)))
        client.pause()
        last = client.snapshot()
        for snapshot in (first, last):
            assert 0 < claimed(snapshot) <= snapshot.rss_bytes < 4096 * MIB
            assert claimed(snapshot, "reserved") > 4000 * MIB
        outside = process.memory_info().rss
        assert abs(outside - last.rss_bytes) < 64 * MIB
    finally:
        client.close()
