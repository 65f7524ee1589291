"""The contract of a `Medium`, as tests that each medium's own test file inherits.

A subclass has a fixture `open_medium` that opens clients of one fresh store, one more a call.
`closing` makes one of a constructor, and `CAP` is the cap that these tests expect.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np

from tests.spatial.media import (
    CANARY,
    PAGE,
    SLICES,
    key_of,
    numbered,
    page_of,
    private_key,
    put_of,
    read,
    reasons,
)  # fmt: skip
from workbench.spatial.hierarchy.medium import Get, Medium

Open = Callable[[], Medium]
CAP = 32 * (4 * PAGE + 4096)


def closing(build: Callable[[], Medium]) -> Iterator[Open]:
    """Opens a medium a call, and closes all of them at the end."""
    opened: list[Medium] = []

    def open_one() -> Medium:
        opened.append(build())
        return opened[-1]

    yield open_one
    for each in opened:
        each.close(keep=False)


def wait_for(ready: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something is so; AssertionError if it does not come."""
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


class OneClientContract:
    """What holds of each medium, also of one that nobody shares."""

    most_pages = 32  # of 4 * PAGE, that the store of these tests has room for

    def test_what_was_put_is_read_whole_and_by_ranges(self, open_medium: Open) -> None:
        medium = open_medium()
        puts = [numbered(number) for number in range(5)]
        done = medium.put(puts)
        assert reasons(done) == [""] * 5
        for put, each in zip(puts, done, strict=True):
            assert 0 < each.real_bytes <= medium.charge_bytes(put.record)
            assert each.real_bytes >= put.payload.nbytes
            assert read(medium, put) == ""
            for piece in range(SLICES):
                assert read(medium, put, piece * PAGE // SLICES, PAGE // SLICES) == ""
        assert medium.real_bytes <= sum(medium.charge_bytes(put.record) for put in puts)
        assert medium.real_bytes >= 5 * PAGE

    def test_a_batch_of_slices_of_several_pages(self, open_medium: Open) -> None:
        medium = open_medium()
        puts = [numbered(number) for number in range(4)]
        medium.put(puts)
        size = PAGE // SLICES
        out = np.full((4, SLICES, size), CANARY, dtype=np.uint8)
        gets = [
            Get(put.record, piece * size, out[row, piece])
            for piece in range(SLICES)  # in the order of layers, as the engine asks
            for row, put in enumerate(puts)
        ]
        assert reasons(medium.get(gets)) == [""] * len(gets)
        assert (out.reshape(4, PAGE) == np.stack([put.payload for put in puts])).all()

    def test_a_page_that_is_not_there_is_a_miss_and_touches_nothing(
        self, open_medium: Open
    ) -> None:
        medium = open_medium()
        there, absent = numbered(1), numbered(2)
        medium.put([there])
        out = np.full((2, PAGE), CANARY, dtype=np.uint8)
        done = medium.get([Get(absent.record, 0, out[0]), Get(there.record, 0, out[1])])
        assert reasons(done) == ["gone", ""]
        assert (out[0] == CANARY).all()
        assert (out[1] == there.payload).all()

    def test_probe_tells_what_is_there(self, open_medium: Open) -> None:
        medium = open_medium()
        puts = [numbered(number) for number in (1, 2, 3)]
        medium.put(puts)
        found = medium.probe([key_of(3), key_of(9), key_of(1)])
        assert found == [puts[2].record, None, puts[0].record]
        assert medium.probe([]) == []

    def test_records_of_any_shape_come_back(self, open_medium: Open) -> None:
        medium = open_medium()
        puts = [
            put_of(key_of(1), page_of(1, 4096), 1),
            put_of(key_of(2), page_of(2, 300 * 512), 300),  # a header longer than 1 KiB
            put_of(key_of(3), page_of(3, 12_345), 1, codec="zstd"),
        ]
        assert reasons(medium.put(puts)) == [""] * 3
        assert medium.probe([put.record.key for put in puts]) == [put.record for put in puts]
        assert [read(medium, put) for put in puts] == [""] * 3

    def test_remove(self, open_medium: Open) -> None:
        medium = open_medium()
        puts = [numbered(number) for number in (1, 2)]
        medium.put(puts)
        assert reasons(medium.remove([key_of(1), key_of(7)])) == ["", ""]
        assert read(medium, puts[0]) == "gone"
        assert read(medium, puts[1]) == ""
        assert medium.real_bytes <= medium.charge_bytes(puts[1].record)
        assert medium.probe([key_of(1)]) == [None]
        assert reasons(medium.put([puts[0]])) == [""]
        assert read(medium, puts[0]) == ""

    def test_scan_finds_whole_pages_in_the_order_of_their_use(self, open_medium: Open) -> None:
        medium = open_medium()
        puts = [numbered(number) for number in range(6)]
        for put in puts:
            medium.put([put])
        found = list(medium.scan())
        assert {record.key for record, _ in found} == {put.record.key for put in puts}
        for record, real in found:
            assert record in [put.record for put in puts]
            assert record.payload_bytes < real <= medium.charge_bytes(record)

    def test_the_cap_holds(self, open_medium: Open) -> None:
        medium = open_medium()
        puts = [numbered(number, 4 * PAGE) for number in range(2 * self.most_pages)]
        done = [each for put in puts for each in medium.put([put])]
        assert medium.real_bytes <= self.most_pages * medium.charge_bytes(puts[0].record)
        held = [put for put, each in zip(puts, done, strict=True) if read(medium, put) == ""]
        assert 4 <= len(held) <= self.most_pages
        for put, each in zip(puts, done, strict=True):
            assert each.reason in ("", "full", "over_cap")
            assert each.reason == "" or read(medium, put) == "gone"
        medium.remove([put.record.key for put in held])
        assert reasons(medium.put(puts[:2])) == ["", ""]

    def test_a_new_cap(self, open_medium: Open) -> None:
        medium = open_medium()
        puts = [numbered(number, 4 * PAGE) for number in range(8)]
        medium.put(puts[:1])
        assert medium.resize(64 * medium.charge_bytes(puts[0].record)) in (True, False)
        assert reasons(medium.put(puts)) == [""] * 8

    def test_names_for_people_hold_no_key(self, open_medium: Open) -> None:
        medium = open_medium()
        assert medium.place and "0x" not in medium.place
        assert medium.place in repr(medium.place)


class MediumContract(OneClientContract):
    """What holds of a medium that several engines share."""

    def test_two_clients_share_pages_and_the_first_copy_stays(self, open_medium: Open) -> None:
        one, two = open_medium(), open_medium()
        put = numbered(1)
        assert reasons(one.put([put])) == [""]
        assert read(two, put) == ""
        assert reasons(two.put([put])) == [""]  # the same page again is success
        other = put_of(key_of(1), page_of(99))
        assert reasons(two.put([other])) == [""]  # the first stays: it is as good
        assert read(one, put) == ""
        assert read(two, other) == "changed"  # not what this record describes
        assert two.probe([key_of(1)]) == [put.record]
        assert reasons(two.remove([key_of(1)])) == [""]
        assert read(one, put) == "gone"

    def test_private_pages_of_two_clients_never_mix(self, open_medium: Open) -> None:
        one, two = open_medium(), open_medium()
        key = private_key("request-1")
        mine, theirs = put_of(key, page_of(1)), put_of(key, page_of(2))
        assert reasons(one.put([mine])) == [""]
        assert two.probe([key]) == [None]
        assert read(two, mine) == "gone"
        assert reasons(two.put([theirs])) == [""]
        assert read(one, mine) == "" and read(two, theirs) == ""
        assert list(one.scan()) == []
        assert reasons(two.remove([key])) == [""]
        assert read(one, mine) == ""
        one.close(keep=True)
        assert two.real_bytes == 0
