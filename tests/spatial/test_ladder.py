"""Three slow tiers below DRAM: what goes down, what comes up, and what each mechanism is for."""

import dataclasses
import os
from typing import Any

import numpy as np
import pytest

from workbench.cache.keys import PrivateKey
from workbench.cache.tier import Lookup
from workbench.clock import ManualClock, RealClock
from workbench.errors import SettingError, TierError
from workbench.settings.tiers import TierSettings
from workbench.spatial.hierarchy.admission import DECAY_S, Frequency, TinyLfu
from workbench.spatial.hierarchy.hierarchy import Hierarchy
from workbench.spatial.hierarchy.patience import RETRY_S
from workbench.spatial.hierarchy.shared_answers import KNOWN_FOR_S

PAGE_MIB = 12_288 / 2**20  # a page of 8192 bytes with its header, on any of the media


def fill(t: Any, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        assert t.store(t.key(number))
        t.settle()


def held(t: Any, tier: str) -> set[int]:
    return {int.from_bytes(row[0], "little") for row in t.h.entries(tier)}


def stats(t: Any, name: str) -> Any:
    return next(tier for tier in t.h.stats().tiers if tier.name == name)


def known(t: Any, keys: list[Any]) -> None:
    """Wait as a request does, until shared tiers have answered."""
    for _ in range(50):
        if t.h.lookups.know(keys):
            return
        t.settle()
    raise AssertionError("a shared tier never answered")


def change(t: Any, **changes: Any) -> None:
    t.settings = dataclasses.replace(t.settings, **changes)
    t.h.configure(t.settings)


# ---- the ladder


def test_what_one_tier_evicts_the_next_one_has(harness, tmp_path):
    t = harness(1, 2, shared="store", shared_mib=3 * PAGE_MIB, object_url=str(tmp_path / "objects"))
    fill(t, 12)
    assert held(t, "G2") == {11} and held(t, "G3") == {9, 10}
    pool, objects = held(t, "G3.5"), held(t, "G4")
    assert 1 <= len(pool) <= 3 and max(pool) == 8
    assert objects == set(range(12)) - {11, 9, 10} - pool, "each page lies in one tier"
    assert all(t.is_hit(t.key(number)) for number in range(12))
    assert t.load([t.key(number) for number in range(3)]) == ["G4"] * 3
    assert t.load([t.key(max(pool))])[0] in ("G3.5", "G2")
    t.settle()
    t.h.check_integrity(strict=True)
    assert not t.faults()
    moved = [d["to_tier"] for kind, d in t.events if kind == "evict" and d["tier"] == "G3"]
    assert set(moved) == {"G3.5"} and stats(t, "G3").num_handed_down == len(moved)


@pytest.mark.parametrize("kind", ["store", "valkey"])
def test_a_pool_alone_serves_and_what_it_lost_is_a_miss(harness, kind):
    t = harness(0, 0, shared=kind, shared_mib=16.0)
    fill(t, 4)
    assert t.load([t.key(n) for n in range(4)]) == ["G3.5"] * 4
    pool = t.h.mover.ladder.tiers[1]
    pool.medium.remove([b"P" + t.key(2)])  # as its own eviction does
    assert t.load([t.key(2), t.key(3)]) == ["", "G3.5"]
    assert stats(t, "G3.5").num_gone == 1 and not t.faults(), "a miss, and no fault"
    assert stats(t, "G3.5").kind == kind
    assert t.store(t.key(2))
    t.settle()
    assert t.load([t.key(2)]) == ["G3.5"]


def test_a_page_on_its_way_down_is_pending_not_lost(harness, tmp_path):
    t = harness(0, 1, ManualClock(), object_url=str(tmp_path), disk_throttle_mb_s=1.0)
    t.store(t.key(0))
    t.settle()
    t.clock.advance(1.0)
    t.settle()
    t.store(t.key(1))  # the disk has room for one
    t.settle()
    assert t.h.lookups.lookup(t.key(0)) is Lookup.HIT_PENDING
    t.h.check_integrity()
    for _ in range(4):
        t.clock.advance(1.0)
        t.settle()
    assert t.load_slowly([t.key(0), t.key(1)]) == ["G4", "G3"]
    t.h.check_integrity(strict=True)


def test_private_pages_never_leave_the_machine(harness, tmp_path):
    t = harness(0, 1, object_url=str(tmp_path))
    mine = [PrivateKey("a", 0, 0, index) for index in range(3)]
    for key in mine:
        t.store(key)
        t.settle()
    assert t.h.entries("G4") == [] and [t.is_hit(key) for key in mine] == [False, False, True]
    assert not [name for _, _, names in os.walk(tmp_path) for name in names]


# ---- shared and persistent media


def test_a_shared_tier_is_asked_and_answers_later(harness, tmp_path):
    one, two = (harness(0, 0, object_url=str(tmp_path)) for _ in range(2))
    fill(one, 3)
    keys = [two.key(number) for number in range(5)]
    assert two.h.lookups.lookup(keys[0]) is Lookup.RETRY, "nobody knows yet, and nobody waits"
    known(two, keys)
    expected = [Lookup.HIT] * 3 + [Lookup.MISS] * 2
    assert [two.h.lookups.lookup(key) for key in keys] == expected
    assert two.load(keys[:3]) == ["G4"] * 3


def test_a_pool_of_others_is_shared_and_evicts_for_itself(harness):
    own = harness(0, 0, shared="valkey", shared_mib=16.0)
    address = f"unix://{own.h.mover.ladder.tiers[1].medium._process.socket_path}"
    guest = harness(0, 0, shared="valkey", shared_address=address, shared_mib=3.5 * PAGE_MIB)
    fill(own, 2)
    keys = [guest.key(number) for number in range(2)]
    known(guest, keys)
    assert guest.load(keys) == ["G3.5"] * 2
    fill(guest, 6, first=2)  # more than the guest may know of
    assert len(held(guest, "G3.5")) < 6
    keys = [guest.key(number) for number in range(8)]
    known(own, keys)
    assert own.load(keys) == ["G3.5"] * 8, "what the guest forgot is still there"


def test_an_answer_holds_for_a_short_time(harness, tmp_path):
    clock = ManualClock()
    one, two = (
        harness(0, 0, object_url=str(tmp_path)),
        harness(0, 0, clock, object_url=str(tmp_path)),
    )
    known(two, [two.key(0)])
    assert two.h.lookups.lookup(two.key(0)) is Lookup.MISS
    fill(one, 1)
    assert two.h.lookups.lookup(two.key(0)) is Lookup.MISS, "it was asked a moment ago"
    clock.advance(KNOWN_FOR_S)
    assert two.h.lookups.lookup(two.key(0)) is Lookup.RETRY
    known(two, [two.key(0)])
    assert two.load([two.key(0)]) == ["G4"]


def test_two_engines_that_put_one_key_each_get_right_bytes(harness, tmp_path):
    """The second finds the first's page there, cut into other slices."""
    one, two = (harness(0, 0, object_url=str(tmp_path)) for _ in range(2))
    assert one.store(one.key(0), 4)
    one.settle()
    assert two.store(two.key(0), 8)
    two.settle()
    assert two.load([two.key(0)]) == one.load([one.key(0)]) == ["G4"]


@pytest.mark.parametrize("keep", [True, False])
def test_files_that_are_kept_are_hits_after_a_restart(harness, tmp_path, keep):
    t = harness(0, 4, disk_path=str(tmp_path), disk_keep=keep)
    fill(t, 3)
    t.store(PrivateKey("a", 0, 0, 0))
    t.settle()
    t.h.close()
    again = harness(0, 4, disk_path=str(tmp_path), disk_keep=keep)
    assert held(again, "G3") == ({0, 1, 2} if keep else set())
    assert again.load([again.key(n) for n in range(3)]) == (["G3"] * 3 if keep else [""] * 3)
    again.h.check_integrity(strict=True)


def test_keeping_is_switched_live(harness, tmp_path):
    t = harness(0, 4, disk_path=str(tmp_path), disk_keep=True)
    fill(t, 2)
    change(t, disk_keep=False)
    assert t.load([t.key(0)]) == ["G3"]
    t.h.close()
    assert list(tmp_path.iterdir()) == []


def test_objects_are_there_for_a_later_process(harness, tmp_path):
    t = harness(0, 0, object_url=str(tmp_path))
    fill(t, 3)
    t.h.close()
    again = harness(0, 0, object_url=str(tmp_path))
    again.settle()
    assert held(again, "G4") == {0, 1, 2}
    assert again.load([again.key(n) for n in range(3)]) == ["G4"] * 3


@pytest.mark.parametrize("wait_s", [0.0, 5.0], ids=["found later", "found first"])
def test_what_is_stored_at_once_has_room_beside_what_is_found(
    harness, tmp_path, monkeypatch, wait_s
):
    monkeypatch.setattr("workbench.spatial.hierarchy.slow_tier.SCAN_WAIT_S", wait_s)
    url = str(tmp_path)
    t = harness(2, 0, object_url=url, object_mib=4 * PAGE_MIB, write="through")
    fill(t, 4)
    change(t, object_url="")
    change(t, object_url=url)
    for number in range(10, 14):
        t.store(t.key(number))
    t.settle()
    assert stats(t, "G4").faults == {} and len(held(t, "G4")) == 4
    fill(t, 6, first=20)
    assert stats(t, "G4").faults == {} and len(held(t, "G4")) == 4
    assert {24, 25} < held(t, "G4")


def test_an_object_tier_stays_within_its_size(harness, tmp_path):
    t = harness(0, 0, object_url=str(tmp_path), object_mib=3 * PAGE_MIB)
    fill(t, 6)
    assert held(t, "G4") == {3, 4, 5} and stats(t, "G4").used_bytes <= 3 * 12_288
    assert len([n for _, _, names in os.walk(tmp_path) for n in names]) == 3


# ---- when pages go down, and when they leave


def written_by(harness: Any, **more: Any) -> int:
    """Bytes the disk takes while eight pages are used, of which two again and again."""
    t = harness(4, 16, **more)
    for number in range(8):
        t.store(t.key(number))
        t.settle()
        for hot in range(min(number + 1, 2)):
            assert t.load([t.key(hot)]) in (["G2"], ["G3"])
            t.settle()
    assert all(t.is_hit(t.key(number)) for number in range(8)), "equal hits"
    return stats(t, "G3").stored_bytes


def test_through_writes_more_than_selective_and_that_more_than_back(harness):
    through, selective, back = (
        written_by(harness, write=name) for name in ("through", "selective", "back")
    )
    assert through > selective > back > 0
    assert through == 8 * 8192


def test_selective_writes_at_the_hit_it_is_told(harness):
    t = harness(4, 4, write="selective", write_hits=3)
    t.store(t.key(0))
    for hits, expected in ((1, 0), (2, 0), (3, 8192), (4, 8192)):
        t.load([t.key(0)])
        t.settle()
        assert stats(t, "G3").stored_bytes == expected, hits


def test_through_writes_to_every_tier_and_evicting_costs_nothing(harness, tmp_path):
    t = harness(2, 4, write="through", object_url=str(tmp_path))
    fill(t, 4)
    assert held(t, "G3") == held(t, "G4") == {0, 1, 2, 3} and held(t, "G2") == {2, 3}
    written = stats(t, "G3").stored_bytes
    fill(t, 1, first=9)
    assert stats(t, "G3").stored_bytes == written + 8192
    t.h.check_integrity(strict=True)


def test_exclusive_tiers_hold_more(harness):
    for inclusive, expected in (("inclusive", {0, 1, 2}), ("exclusive", {1, 2})):
        t = harness(1, 4, inclusive=inclusive)
        fill(t, 4)
        assert held(t, "G3") == {0, 1, 2}
        assert t.load([t.key(0)]) == ["G3"]
        t.settle()
        assert held(t, "G3") - {3} == expected and t.is_hit(t.key(0))
        t.h.check_integrity(strict=True)


def test_pages_used_once_stay_off_the_disk(harness):
    t = harness(2, 8, admission="frequency")
    fill(t, 4)
    t.load([t.key(3)])
    fill(t, 3, first=4)
    assert held(t, "G3") == {3}
    t.store(t.key(0))  # again: it was here before
    fill(t, 2, first=7)
    assert held(t, "G3") == {0, 3}


def test_frequency_starts_at_one_doubles_and_decays():
    clock = ManualClock()
    filter_ = Frequency(clock)
    filter_.seen(b"a")
    assert not filter_.admits(b"a", None) and not filter_.admits(b"b", None)
    filter_.seen(b"a")
    filter_.seen(b"a")
    assert filter_.admits(b"a", None)  # 4
    for left in (3, 2, 1, 0):
        clock.advance(DECAY_S)
        filter_.seen(b"other")
        assert filter_.admits(b"a", None) == (left >= 2)


def test_tinylfu_keeps_what_is_used_more():
    filter_ = TinyLfu()
    for _ in range(5):
        filter_.seen(b"hot")
    filter_.seen(b"cold")
    assert filter_.admits(b"hot", b"cold") and not filter_.admits(b"cold", b"hot")
    assert filter_.admits(b"cold", None), "there is room"
    assert (filter_.estimate(b"hot"), filter_.estimate(b"cold")) == (5, 1)


def test_tinylfu_at_the_disk(harness):
    t = harness(1, 2, admission="tinylfu")
    fill(t, 3)  # 0 and 1 on disk
    for _ in range(3):
        t.store(t.key(0))
        t.store(t.key(1))
    fill(t, 4, first=3)
    assert held(t, "G3") == {0, 1}, "pages seen once do not push out pages seen often"


def test_above_the_watermark_several_go_at_once(harness):
    t = harness(10, 0, watermark=0.9, evict_ratio=0.3)
    fill(t, 9)
    assert len(held(t, "G2")) == 9
    fill(t, 1, first=9)
    t.h.poll()
    assert held(t, "G2") == {3, 4, 5, 6, 7, 8, 9}
    change(t, watermark=1.0)
    fill(t, 3, first=10)
    assert len(held(t, "G2")) == 10


# ---- pins


def test_a_pinned_page_is_never_evicted(harness):
    t = harness(2, 2)
    fill(t, 1)
    assert t.h.holds.pin(t.key(0)) and not t.h.holds.pin(t.key(9))
    fill(t, 6, first=1)
    assert 0 in held(t, "G2")
    t.h.check_integrity(strict=True)
    t.h.holds.unpin(t.key(0))
    fill(t, 2, first=7)
    assert 0 not in held(t, "G2")


def test_a_lease_ends_with_its_time(harness):
    t = harness(2, 0, ManualClock())
    fill(t, 1)
    t.h.holds.pin(t.key(0), 10.0)
    fill(t, 4, first=1)
    assert 0 in held(t, "G2")
    t.clock.advance(10.0)
    fill(t, 2, first=5)
    assert 0 not in held(t, "G2")


# ---- faults


def test_a_tier_that_fails_is_left_alone_and_comes_back(harness, tmp_path):
    t = harness(0, 16, ManualClock(), object_url=str(tmp_path))
    disk = t.disk.medium
    whole = os.dup(disk._file)
    with open("/dev/full", "r+b", buffering=0) as full:
        os.dup2(full.fileno(), disk._file)
    for number in range(8):
        t.store(t.key(number))
        t.settle()
    assert stats(t, "G3").failed == "disk_full" and stats(t, "G3").num_stores == 0
    fill(t, 4, first=8)
    assert held(t, "G4") == {8, 9, 10, 11} and len(t.faults()) == 8, "the next tier takes over"
    os.dup2(whole, disk._file)
    os.close(whole)
    fill(t, 1, first=12)
    assert 12 in held(t, "G4")
    t.clock.advance(RETRY_S)
    fill(t, 2, first=13)
    assert held(t, "G3") == {13, 14} and stats(t, "G3").failed == ""


def test_a_pool_that_dies_is_a_miss_and_the_rest_goes_on(harness):
    t = harness(1, 0, shared="store", shared_mib=16.0)
    fill(t, 3)
    pool = t.h.mover.ladder.tiers[1]
    pool.medium._companion.close()
    assert t.load([t.key(0), t.key(2)]) == ["", "G2"]
    t.store(t.key(5))
    t.settle()
    assert stats(t, "G3.5").faults and t.is_hit(t.key(5))


# ---- settings


def test_addresses_hold_no_secrets():
    for name in ("object_url", "shared_address"):
        with pytest.raises(
            SettingError, match=f"tiers.{name} may hold no user or password"
        ) as error:
            TierSettings(**{name: "s3://me:secret@bucket/prefix"})
        assert "secret" not in str(error.value)
    with pytest.raises(SettingError, match="tiers.disk_path is empty"):
        TierSettings(disk_keep=True)


def test_a_refused_medium_changes_nothing(harness, tmp_path):
    t = harness(1, 4, object_url=str(tmp_path / "one"))
    fill(t, 4)
    before = t.h.stats().tiers
    kept = t.settings
    for wrong in ({"object_url": "ftp://bucket"}, {"shared": "valkey", "shared_address": "x://y"},
                  {"shared": "store", "shared_mib": 0.001}):  # fmt: skip
        with pytest.raises(TierError):
            change(t, dram_mib=0.0, **wrong)
        t.settings = kept
        assert t.h.stats().tiers == before and t.h.settings == kept
    assert t.load([t.key(0), t.key(3)]) == ["G3", "G2"]


def test_tiers_are_switched_on_and_off_live(harness, tmp_path):
    t = harness(1, 2)
    fill(t, 4)
    change(t, object_url=str(tmp_path))
    fill(t, 4, first=4)
    assert held(t, "G4") == {1, 2, 3, 4} and t.load([t.key(1)]) == ["G4"]
    change(t, object_url="")
    assert t.h.entries("G4") == [] and not stats(t, "G4").on
    fill(t, 4, first=8)
    change(t, object_url=str(tmp_path))
    t.settle()
    assert {2, 3} <= held(t, "G4"), "objects outlive the tier"
    t.h.check_integrity(strict=True)


def test_more_than_can_be_on_its_way_is_copied_down_all_the_same(tmp_path):
    size, count = 2**20, 60  # 32 MiB at a time may be on their way
    settings = TierSettings(
        dram_mib=64.0, disk_mib=80.0, disk_path=str(tmp_path), disk_keep=True, write="through"
    )
    with Hierarchy(settings, size, RealClock(), lambda kind, data: None) as hierarchy:
        for number in range(count):
            page = np.full(size, number, np.uint8)
            assert hierarchy.store(number.to_bytes(32, "little"), page, 1)
        assert hierarchy.wait_io(60.0)
        assert len(hierarchy.entries("G3")) == count
        hierarchy.check_integrity()
