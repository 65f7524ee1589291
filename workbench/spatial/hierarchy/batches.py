"""Batches of operations that a medium takes at once."""

from collections.abc import Iterator, Sequence


def in_batches(sizes: Sequence[int], most_bytes: int, most_items: int = 1 << 30) -> Iterator[slice]:
    """Slices of a list whose items have these bytes: each at most so many bytes and items.

    An item larger than a batch has one of its own.
    """
    begin = 0
    while begin < len(sizes):
        end, total = begin, 0
        while end < len(sizes) and end - begin < most_items:
            total += sizes[end]
            if total > most_bytes and end > begin:
                break
            end += 1
        yield slice(begin, end)
        begin = end
