"""The tier contract: store, look up, load, cancel, private entries, events, figures."""

import math
import os
import stat

import numpy as np
import pytest

from workbench.cache.keys import PrivateKey
from workbench.cache.tier import Lookup
from workbench.clock import ManualClock
from workbench.errors import IntegrityError, TierError


def test_a_page_comes_back_from_dram(harness):
    t = harness(4)
    assert t.h.lookups.lookup(t.key(1)) is Lookup.MISS
    assert t.store(t.key(1))
    assert t.is_hit(t.key(1))
    assert t.load([t.key(1), t.key(2)]) == ["G2", ""]
    assert t.h.stats().tiers[0].num_hits == 0, "asking alone counts nothing"
    t.h.lookups.count([t.key(1), t.key(2)])
    g2 = t.h.stats().tiers[0]
    assert (g2.num_hits, g2.num_misses, g2.num_loads, g2.num_stores) == (1, 1, 1, 1)
    assert g2.loaded_bytes == g2.stored_bytes == t.page_bytes
    assert g2.provenance == "measured" and g2.fit.bandwidth_bytes_per_s > 0


def test_the_page_is_copied_before_store_returns(harness):
    t = harness(4, 8)
    page = t.page(t.key(1))
    assert t.h.store(t.key(1), page, 4)
    page[:] = 0
    assert t.load([t.key(1)]) == ["G2"]


@pytest.mark.parametrize("shape", [(8, 1024), (2, 4, 1024)])
def test_pages_of_any_shape_and_stride(harness, shape):
    t = harness(4)
    wide = np.repeat(t.page(t.key(1)).reshape(shape)[..., None], 2, axis=-1)
    assert t.h.store(t.key(1), wide[..., 0], 8)
    assert t.load([t.key(1)]) == ["G2"]


def test_lru_without_disk_forgets_the_oldest(harness):
    t = harness(3)
    for number in range(3):
        t.store(t.key(number))
    t.load([t.key(0)])
    t.store(t.key(3))
    assert [t.is_hit(t.key(n)) for n in range(4)] == [True, False, True, True]
    evicts = [data for kind, data in t.events if kind == "evict"]
    assert [e["demoted"] for e in evicts] == [False] and evicts[0]["tier"] == "G2"


def test_victims_go_to_disk_and_come_back_into_dram(harness):
    t = harness(2, 8)
    for number in range(4):
        assert t.store(t.key(number))
        t.settle()
    assert [t.h.mover.dram.get(t.key(n)) is not None for n in range(4)] == [0, 0, 1, 1]
    assert all(t.is_hit(t.key(n)) for n in range(4))
    assert t.load([t.key(0)]) == ["G3"]
    assert t.load([t.key(0)]) == ["G2"]  # promoted
    t.settle()
    written = t.h.stats().tiers[1].stored_bytes
    t.load([t.key(1)])  # pushes key 0 or 3 out: key 0 kept its file
    t.load([t.key(3)])
    t.settle()
    assert t.h.stats().tiers[1].stored_bytes <= written + 2 * t.page_bytes
    t.h.check_integrity(strict=True)


def test_pending_while_being_written_and_published_after(harness):
    t = harness(0, 8)
    assert t.store(t.key(1))
    assert t.h.lookups.lookup(t.key(1)) is Lookup.HIT_PENDING
    t.settle()
    assert t.h.lookups.lookup(t.key(1)) is Lookup.HIT


def test_disk_alone_serves_through_staging(harness):
    t = harness(0, 8)
    for number in range(4):
        t.store(t.key(number))
    t.settle()
    assert t.load([t.key(n) for n in range(5)]) == ["G3"] * 4 + [""]
    assert t.h.stats().staging_used_bytes == 0


def test_retry_while_staging_is_full(harness):
    t = harness(0, 8)
    for number in range(2):
        t.store(t.key(number))
    t.settle()
    t.h.mover.staging.capacity_bytes = t.page_bytes
    job = t.h.submit_load([t.key(0)])
    t.result(job)
    assert t.h.lookups.lookup(t.key(1)) is Lookup.RETRY
    refused = t.h.submit_load([t.key(1)])  # asked all the same: a counted miss
    assert t.result(refused).pages == (None,)
    assert ("G3", "no_room") in t.faults()
    t.h.complete_load(refused)
    t.h.complete_load(job)
    assert t.is_hit(t.key(1))


def test_one_job_never_evicts_its_own_pages(harness):
    t = harness(2, 8)  # both pools hardly larger than needed
    for number in range(4):
        t.store(t.key(number))
        t.settle()
    assert t.load([t.key(n) for n in (2, 3, 0, 1)]) == ["G2", "G2", "G3", "G3"]
    t.settle()
    t.h.check_integrity(strict=True)


def test_the_same_cold_key_twice_in_a_job_is_read_once(harness):
    t = harness(1, 8)
    for number in range(2):
        t.store(t.key(number))
        t.settle()
    assert t.load([t.key(0), t.key(0)]) == ["G3", "G3"]
    assert t.h.stats().tiers[1].num_loads == 1


def test_two_jobs_share_one_read(harness):
    t = harness(2, 8)
    for number in range(3):
        t.store(t.key(number))
        t.settle()
    first, second = t.h.submit_load([t.key(0)]), t.h.submit_load([t.key(0)])
    results = {}
    while len(results) < 2:
        results.update({r.job_id: r for r in t.h.poll()})
    for job in (first, second):
        assert (results[job].pages[0] == t.page(t.key(0))).all()
        t.h.complete_load(job)
    assert t.h.stats().tiers[1].num_loads == 1


def test_pinned_pages_survive_pressure(harness):
    t = harness(2)
    t.store(t.key(0))
    t.store(t.key(1))
    job = t.h.submit_load([t.key(0), t.key(1)])
    result = t.result(job)
    assert not t.store(t.key(2))  # nothing may be evicted
    assert t.h.stats().tiers[0].num_dropped_stores == 1
    assert (result.pages[0] == t.page(t.key(0))).all()
    t.h.complete_load(job)
    assert t.store(t.key(2))


@pytest.mark.parametrize("polls", [0, 1, 50])
@pytest.mark.parametrize("dram", [0, 2])
def test_cancel_at_any_moment_leaves_no_pin(harness, polls, dram):
    t = harness(dram, 8)
    for number in range(4):
        t.store(t.key(number))
        t.settle()
    job = t.h.submit_load([t.key(n) for n in range(4)])
    for _ in range(polls):
        t.h.poll()
    t.h.cancel_load(job)
    t.h.complete_load(job)  # allowed after a cancel
    t.settle()
    assert all(tier.pinned_bytes == 0 for tier in t.h.stats().tiers)
    assert t.h.stats().staging_used_bytes == 0
    t.h.check_integrity(strict=True)


def test_an_unknown_job_is_an_error(harness):
    t = harness(2)
    with pytest.raises(IntegrityError, match="load job 7 was never submitted: pass submit_load's"):
        t.h.complete_load(7)


def test_private_entries_die_with_their_request(harness):
    t = harness(2, 8)
    mine = [PrivateKey("a", 0, 0, index) for index in range(4)]
    theirs = PrivateKey("b", 0, 0, 0)
    for key in [*mine, theirs]:
        t.store(key)
        t.settle()
    assert sum(tier.num_private for tier in t.h.stats().tiers) >= 5
    t.h.drop_private("a")
    t.settle()
    assert [t.h.lookups.lookup(key) for key in mine] == [Lookup.MISS] * 4
    assert t.is_hit(theirs)
    t.h.check_integrity(strict=True)


def test_private_pages_dropped_while_loading_stay_readable(harness):
    t = harness(2, 8)
    key = PrivateKey("a", 0, 0, 0)
    t.store(key)
    job = t.h.submit_load([key])
    t.h.drop_private("a")
    assert t.h.lookups.lookup(key) is Lookup.MISS
    assert (t.result(job).pages[0] == t.page(key)).all()
    assert t.h.mover.dram.doomed
    t.h.check_integrity()
    t.h.complete_load(job)
    assert t.h.stats().tiers[0].used_bytes == 0


def test_epochs_are_isolated(harness):
    t = harness(4, 8)
    old, new = PrivateKey("a", 1, 0, 0), PrivateKey("a", 2, 0, 0)
    t.store(old)
    assert t.h.lookups.lookup(new) is Lookup.MISS
    t.store(new)
    assert t.h.lookups.lookup(old) is Lookup.MISS  # the newer epoch replaced it
    assert not t.store(old)  # a late write of an earlier swap
    assert t.h.lookups.lookup(old) is Lookup.MISS
    assert t.load([new]) == ["G2"]


def test_a_private_key_can_be_stored_again_with_other_bytes(harness):
    t = harness(4)
    key = PrivateKey("a", 0, 0, 0)
    t.h.store(key, np.zeros(t.page_bytes, dtype=np.uint8), 4)
    t.store(key)
    assert t.load([key]) == ["G2"]


def test_clear_forgets_everything(harness):
    t = harness(2, 8)
    for number in range(4):
        t.store(t.key(number))
    t.h.clear()
    t.settle()
    assert all(t.h.lookups.lookup(t.key(n)) is Lookup.MISS for n in range(4))
    assert all(tier.used_bytes == 0 for tier in t.h.stats().tiers)
    t.h.check_integrity(strict=True)


def test_slices_must_divide_the_page(harness):
    t = harness(2)
    with pytest.raises(TierError, match="a page of 8192 bytes cannot be cut into 3 equal slices"):
        t.store(t.key(1), num_slices=3)


def test_pages_of_different_sizes_share_the_budget(harness):
    t = harness(4)
    rng = np.random.default_rng(0)
    sizes = [4096, 8192, 1024, 12288, 8192, 2048]
    for number, size in enumerate(sizes):
        assert t.h.store(t.key(number), rng.integers(0, 256, size, dtype=np.uint8), 2)
        t.h.check_integrity()
        assert t.h.stats().host_allocated_bytes <= 4 * t.page_bytes
    assert t.h.stats().tiers[0].used_bytes <= 4 * t.page_bytes


def test_a_page_larger_than_dram_goes_to_disk(harness):
    t = harness(1, 16)
    page = np.random.default_rng(0).integers(0, 256, 3 * t.page_bytes, dtype=np.uint8)
    assert t.h.store(t.key(1), page, 3)
    t.settle()
    job = t.h.submit_load([t.key(1)])
    assert (t.result(job).pages[0] == page).all()
    t.h.complete_load(job)


def test_entries_in_lru_order_and_cached(harness):
    t = harness(3)
    for number in range(3):
        t.store(t.key(number))
    t.load([t.key(0)])
    rows = t.h.entries("G2")
    assert [row[0] for row in rows] == [t.key(n) for n in (1, 2, 0)]
    assert all(row[1] == t.page_bytes and not row[2] for row in rows)
    assert t.h.entries("G2") is rows
    version = t.h.version("G2")
    t.store(t.key(3))
    assert t.h.version("G2") > version and t.h.entries("G2") is not rows


def test_estimate_follows_place_and_absence(harness):
    t = harness(1, 8)
    for number in range(2):
        t.store(t.key(number))
        t.settle()
    assert 0 < t.h.lookups.estimate_load_s([t.key(1)]) < math.inf
    assert 0 < t.h.lookups.estimate_load_s([t.key(0)]) < math.inf
    assert t.h.lookups.estimate_load_s([t.key(5)]) == math.inf


def test_private_folder_and_its_end(harness):
    t = harness(0, 4)
    place = os.path.dirname(t.h.stats().tiers[1].place)
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
    t.store(t.key(0))
    t.h.close()
    t.h.close()
    assert not os.path.exists(place)


def test_two_hierarchies_side_by_side(harness):
    one, two = harness(1, 4), harness(1, 4)
    for t in (one, two):
        for number in range(3):
            t.store(t.key(number))
            t.settle()
    assert one.h.stats().tiers[1].place != two.h.stats().tiers[1].place
    assert one.load([one.key(0)]) == two.load([two.key(0)]) == ["G3"]


def test_a_modelled_clock_works_too(harness):
    t = harness(2, 8, clock=ManualClock())
    for number in range(4):
        t.store(t.key(number))
        t.settle()
    assert t.load([t.key(0), t.key(3)]) == ["G3", "G2"]
    assert t.h.lookups.estimate_load_s([t.key(0)]) == 0.0
