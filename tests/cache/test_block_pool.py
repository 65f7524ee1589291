"""What the pool promises when two page classes need blocks at once."""

from kvkernels.layout import PageSpec

from workbench.cache.block_pool import BlockPool
from workbench.cache.geometry import build_geometry
from workbench.cache.prefix_index import HashIndex, Row

SIZE = 4


def specs() -> list[PageSpec]:
    """Pages of one layer and of two."""
    geometry = build_geometry("halves", num_layers=3, num_kv_heads=1, head_dim=16)
    return [group.page_spec(16, SIZE, "fp32", "fp32") for group in geometry.groups]


def row(number: int, *blocks: int) -> Row:
    key = bytes([number]) * 32
    return Row(key, None, blocks, (number,) * SIZE, "fp32", key)


def pool_of(num_slabs: int) -> tuple[BlockPool, int, int]:
    small, large = sorted(specs(), key=lambda spec: spec.page_bytes)
    pool = BlockPool(
        num_slabs=num_slabs, slab_bytes=large.page_bytes, smallest_page_bytes=small.page_bytes,
        index=HashIndex(lambda row: None, lambda row: None), before_evict=lambda row: None,
    )  # fmt: skip
    return pool, pool.class_of(small), pool.class_of(large)


def test_a_class_with_cached_blocks_leaves_the_last_slab_to_the_other() -> None:
    pool, small, large = pool_of(2)
    ((held, idle),) = pool.allocate([(small, 2)])
    pool.publish(row(1, idle))
    pool.free([idle])
    assert pool.can_allocate({small: 1, large: 1})
    assert pool.allocate([(small, 1), (large, 1)])[0] == [idle], "its cached block is taken"
    assert pool.ref_cnt[held] == 1 and pool.num_unassigned_slabs == 0


def test_a_slab_that_an_eviction_empties_is_left_to_the_other() -> None:
    """A row's blocks lie in both classes: evicting it gives the other class's slab back."""
    pool, small, large = pool_of(3)
    ((held, first, second, third),) = pool.allocate([(small, 4)])
    ((other,),) = pool.allocate([(large, 1)])
    pool.publish(row(1, first, other))
    pool.publish(row(2, second))
    pool.publish(row(3, third))
    pool.free([first, second, third, other])
    assert pool.can_allocate({small: 2, large: 1})
    assert pool.allocate([(small, 2), (large, 1)])[0] == [first, second]
    assert pool.ref_cnt[held] == 1


def test_without_other_needs_a_fresh_slab_goes_before_cached_blocks() -> None:
    pool, small, _ = pool_of(2)
    ((held, idle),) = pool.allocate([(small, 2)])
    pool.publish(row(1, idle))
    pool.free([idle])
    assert pool.can_allocate({small: 1})
    assert pool.allocate([(small, 1)]) not in ([[held]], [[idle]])
    assert len(pool.index) == 1
