"""Token bucket, throttled tiers on a modelled clock, and the fits behind the gate."""

import pytest

from workbench.cache.tier import Lookup
from workbench.clock import ManualClock
from workbench.spatial.hierarchy.bandwidth import TransferFit
from workbench.spatial.hierarchy.throttle import TokenBucket


def test_bucket_paces_back_to_back_transfers():
    bucket = TokenBucket(1.0)  # 10^6 bytes per second
    assert bucket.reserve(500_000, 10.0) == pytest.approx(10.5)
    assert bucket.reserve(500_000, 10.0) == pytest.approx(11.0)
    assert bucket.reserve(1_000_000, 20.0) == pytest.approx(21.0)  # idle time is not saved up
    assert bucket.wait_s(20.25) == pytest.approx(0.75)


def test_bucket_off_costs_nothing_and_rate_changes_scale_waits():
    bucket = TokenBucket(0.0)
    assert bucket.reserve(10**9, 3.0) == 3.0 and bucket.wait_s(3.0) == 0.0
    bucket.set_rate(2.0, 0.0)
    bucket.reserve(4_000_000, 0.0)
    assert bucket.set_rate(1.0, 0.0) == 2.0
    assert bucket.wait_s(0.0) == pytest.approx(4.0)
    assert bucket.set_rate(0.0, 1.0) == 0.0


def test_throttled_dram_completes_by_the_clock(harness):
    clock = ManualClock()
    t = harness(4, clock=clock, dram_throttle_mb_s=8.192)  # one page a millisecond
    t.store(t.key(0))
    assert t.h.lookups.lookup(t.key(0)) is Lookup.HIT_PENDING
    clock.advance(0.0011)
    t.h.poll()
    assert t.is_hit(t.key(0))
    assert t.h.lookups.estimate_load_s([t.key(0)]) == pytest.approx(0.001, rel=0.01)
    job = t.h.submit_load([t.key(0)])
    assert t.h.poll() == []
    clock.advance(0.0009)
    assert t.h.poll() == []
    clock.advance(0.0002)
    (result,) = t.h.poll()
    assert (result.pages[0] == t.page(t.key(0))).all()
    assert result.seconds == pytest.approx(0.0011)
    t.h.complete_load(job)
    g2 = t.h.stats().tiers[0]
    assert g2.provenance == "throttled" and g2.fit.bandwidth_bytes_per_s == pytest.approx(8.192e6)


def test_throttled_disk_pushes_back_and_can_be_freed(harness):
    clock = ManualClock()
    t = harness(0, 8, clock=clock, disk_throttle_mb_s=8.192)
    t.h.mover.staging.capacity_bytes = 2 * t.page_bytes
    assert t.store(t.key(0)) and t.store(t.key(1))
    assert not t.store(t.key(2))  # both buffers wait for the slow disk
    t.settle()
    assert t.h.lookups.lookup(t.key(0)) is Lookup.HIT_PENDING
    clock.advance(0.0011)
    t.settle()
    assert t.h.lookups.lookup(t.key(0)) is not Lookup.HIT_PENDING
    assert t.h.lookups.lookup(t.key(1)) is Lookup.HIT_PENDING
    t.h.configure(t.settings.__class__(disk_mib=t.settings.disk_mib))  # throttle off
    t.settle()
    assert t.is_hit(t.key(1))
    assert t.load([t.key(0), t.key(1)]) == ["G3", "G3"]


def test_a_dropped_entry_is_not_published_by_a_late_completion(harness):
    clock = ManualClock()
    t = harness(2, 8, clock=clock, dram_throttle_mb_s=1.0, disk_throttle_mb_s=1.0)
    t.store(t.key(0))
    t.h.clear()
    t.store(t.key(0))
    clock.advance(0.0083)  # the first store's completion passes, the second's does not
    t.h.poll()
    assert t.h.lookups.lookup(t.key(0)) is Lookup.HIT_PENDING
    clock.advance(1.0)
    t.settle()
    assert t.is_hit(t.key(0))
    assert [kind for kind, _ in t.events].count("store") == 1


@pytest.mark.parametrize("latency_s, rate", [(1e-4, 5e8), (0.0, 2e10), (5e-3, 1e8)])
def test_fit_finds_latency_and_bandwidth(latency_s, rate):
    fit = TransferFit()
    for size in (4096, 65536, 1 << 20, 368640) * 10:
        fit.observe(size, latency_s + size / rate)
    assert fit.latency_s == pytest.approx(latency_s, rel=0.12, abs=1e-7)
    assert fit.predict_s(1 << 20, 1) == pytest.approx(latency_s + (1 << 20) / rate, rel=0.02)


def test_fit_follows_a_tier_that_becomes_slower_at_one_size():
    fit = TransferFit()
    for size in (4096, 1 << 20):
        fit.observe(size, 1e-5 + size / 1e10)
    for _ in range(400):
        fit.observe(368640, 368640 / 1e8)
    assert fit.predict_s(368640, 1) == pytest.approx(368640 / 1e8, rel=0.05)
    assert fit.latency_s < 1e-4


def test_fit_learns_nothing_from_a_clock_that_stands_still():
    fit = TransferFit()
    fit.observe(4096, 0.0)
    assert fit.num_seen == 0 and fit.bandwidth_bytes_per_s == 0 and fit.predict_s(4096, 1) == 0
