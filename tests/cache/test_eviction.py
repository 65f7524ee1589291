"""Taking tokens away: what others hold or may find stays as it is, and no room means no change."""

from functools import partial

import numpy as np
import pytest

from tests.cache.driven_cache import SIZE, DrivenCache
from workbench.cache.eviction import evict_pages, keep_slots
from workbench.request import Request

TEXT = list(range(40))


def cache(num_slabs: int, grouping: str = "model") -> DrivenCache:
    """Two pages of the largest class a slab."""
    driven = DrivenCache()
    driven.build(grouping, 2, num_slabs, disk=False)
    return driven


def admitted(driven: DrivenCache, length: int, own: int = 0, text: list[int] = TEXT) -> Request:
    driven.arrive(text, length, "", own)
    driven.admit(driven.waiting[-1], 60, 0)
    return driven.requests[-1]


def keep(driven: DrivenCache, request: Request, kept: list[int], group: int = 0) -> int | None:
    move = partial(driven.move, group)
    return keep_slots(driven.manager, request, group, np.array(kept), move)


def bytes_of(driven: DrivenCache, blocks: np.ndarray) -> list[bytes]:
    return [driven.page(0, int(block)).tobytes() for block in blocks]


def test_shared_and_hashed_pages_are_copied_and_never_changed() -> None:
    driven = cache(12)
    other = admitted(driven, 16, 2)
    request = admitted(driven, 16, 3)
    theirs = driven.manager.requests[other.request_id].blocks(0).copy()
    mine = driven.manager.requests[request.request_id].blocks(0).copy()
    assert (theirs[:4] == mine[:4]).all()
    before, rows = bytes_of(driven, theirs), driven.pool.index.rows()
    assert keep(driven, request, [0, 1, 2, 3, 5, 9, 13, 16, 17, 18]) == 1 - 2
    driven.verify_bytes(request)
    driven.verify_bytes(other)
    assert bytes_of(driven, theirs) == before and driven.pool.index.rows() == rows
    blocks = driven.manager.requests[request.request_id]
    assert blocks.positions(0).tolist() == [0, 1, 2, 3, 5, 9, 13, 16, 17, 18]
    assert blocks.table[0, 0] == mine[0], "the page in front of the first gap stays"
    assert blocks.table[0, 1] not in theirs and not blocks.hashing
    driven.compute(request, 1)
    assert blocks.positions(0)[-1] == 19


def test_a_page_of_its_own_is_packed_in_place() -> None:
    driven = cache(6)
    request = admitted(driven, 0, 11)
    driven.pool.evict_all()
    mine = driven.manager.requests[request.request_id].blocks(0).copy()
    assert keep(driven, request, [0, 4, 5, 10]) == 2
    blocks = driven.manager.requests[request.request_id]
    assert blocks.blocks(0).tolist() == [mine[0]]
    driven.verify_bytes(request)


def test_without_room_for_copies_shared_pages_stay_and_nothing_changes() -> None:
    driven = cache(3)
    admitted(driven, 16)
    request = admitted(driven, 16, 5)  # 6 pages of 6, of which 4 are shared
    assert not driven.fits(1)
    before = driven.state()
    tables = driven.manager.requests[request.request_id].table.copy()
    assert keep(driven, request, [1, 5, 9, 13, 16, 17, 18, 19, 20]) is None
    assert driven.state() == before
    blocks = driven.manager.requests[request.request_id]
    assert (blocks.table == tables).all() and blocks.stored_len[0] == 21 and blocks.hashing
    driven.verify_bytes(request)


def test_no_page_freed_is_no_change() -> None:
    driven = cache(6)
    request = admitted(driven, 16)
    before = driven.state()
    assert keep(driven, request, list(range(13))) is None
    assert driven.state() == before and driven.manager.requests[request.request_id].hashing


def test_without_room_hashed_pages_of_its_own_leave_the_index_and_are_packed() -> None:
    """Else a lone request would outgrow its budget: nobody can make room for it."""
    driven = cache(3)
    request = admitted(driven, 24)
    assert not driven.fits(1) and len(driven.pool.index) == 6
    assert keep(driven, request, [0, *range(9, 24)]) == 2
    assert len(driven.pool.index) == 2, "only the rows that were written over are gone"
    driven.verify_bytes(request)
    driven.compute(request, 1)
    driven.verify_bytes(request)


def test_a_written_page_belongs_to_its_writer() -> None:
    """Its first writer has gone, and so has its row, with the other group's idle block."""
    driven = cache(6, "layer")
    first = admitted(driven, 8)
    second = admitted(driven, 8, 1)
    evict_pages(driven.manager, second, 1, [1])
    driven.forget(first)
    shared = int(driven.manager.requests[second.request_id].table[0, 1])
    row = driven.pool.row_of[shared]
    assert row is not None
    driven.pool.drop(row)
    assert driven.pool.owner[shared] == first.owner
    assert keep(driven, second, [0, 1, 2, 3, 7, 8]) == 1
    blocks = driven.manager.requests[second.request_id]
    assert blocks.table[0, 1] == shared and driven.pool.owner[shared] == second.owner


def test_only_full_pages_can_be_evicted() -> None:
    driven = cache(6)
    request = admitted(driven, 10)
    with pytest.raises(ValueError, match=r"pages \[2\] are not all full pages of group 0"):
        evict_pages(driven.manager, request, 0, [2])
    assert evict_pages(driven.manager, request, 0, []) == 0
    assert driven.manager.requests[request.request_id].stored_len[0] == 10
    assert SIZE == 4
