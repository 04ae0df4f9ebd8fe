"""Find the longest resident prefix of a block chain for many replicas."""

from collections.abc import Callable, Iterator

MaskAt = Callable[[int], int]
"""The replicas (a bit each) that have block `i` of the chain."""


def prefix_depths(
    mask_at: MaskAt, low: int, length: int, wanted: int, *, back_scan: int = 0
) -> Iterator[tuple[int, int]]:
    """(bits, n) for groups of the replicas `wanted`, which have the first `low` blocks: all in
    `bits` have the first n of the `length` blocks, n > low.

    A bisection for each different n. It takes for granted that who has a block has those before
    it, as caches that evict the end of a chain first do; `back_scan` looks at so many blocks before
    the end, and where one is missing it searches again before that one.
    """
    start = low
    while wanted and low < length:
        has, end = low - 1, length
        while end - has > 1:
            middle = (has + end) // 2
            if mask_at(middle) & wanted == wanted:
                has = middle
            else:
                end = middle
        further = mask_at(end) & wanted if end < length else 0
        if end > low and wanted != further:
            yield from _verified(mask_at, start, end, wanted & ~further, back_scan)
        low, wanted = end, further


def _verified(
    mask_at: MaskAt, start: int, end: int, bits: int, back_scan: int
) -> Iterator[tuple[int, int]]:
    for at in range(end - 2, max(start, end - 1 - back_scan) - 1, -1):
        missing = bits & ~mask_at(at)
        if missing:
            yield from prefix_depths(mask_at, start, at, missing, back_scan=back_scan)
            bits &= ~missing
    if bits:
        yield bits, end
