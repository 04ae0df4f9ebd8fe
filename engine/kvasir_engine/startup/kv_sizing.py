"""Sizes that fit: blocks for a memory budget, context for a number of blocks. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import mul

from kvasir_engine.kv.cache_spec import CacheSpec, page_bytes
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.settings import SettingsError
from kvasir_engine.startup.shortages import MIN_CONTEXT

SHORT = 1024
"""Tokens of a short sequence: what is shorter still need not be served in the largest number."""


def bytes_per_block(group: KVGroupSpec, specs: Sequence[CacheSpec], item_bytes: int) -> int:
    """Return the bytes of one block of a group: a page of each of its layers."""
    return sum(page_bytes(specs[layer], group.block_size, item_bytes) for layer in group.layers)


def split_blocks(
    groups: Sequence[KVGroupSpec],
    block_bytes: Sequence[int],
    budget: int,
    *,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> list[int]:
    """Blocks of each group (the null block included) that `budget` bytes hold together.

    Short sequences fill the groups with a window first, long ones those without, and which will
    come is not known. So a group's share of the bytes is in proportion to the largest part of a
    sequence's bytes that it has at any length. Then 1 / (sum of these parts) of the sequences that
    the best shares for one length would hold are held at every length, which is more than any
    other shares can promise; with two groups it is at least half. Where one sequence of the
    longest context would not fit, each group gets what that sequence needs and its share of the
    rest, or all groups the same number of blocks, whichever reaches further. No group gets more
    than all rows at the longest context could use.
    """
    size = groups[0].block_size
    chunk = max_num_batched_tokens
    shares = _shares(groups, block_bytes, max_model_len)

    def shared(bytes_: int, given: Sequence[int]) -> list[int]:
        return [
            blocks + int(bytes_ * share / each)
            for blocks, share, each in zip(given, shares, block_bytes, strict=True)
        ]

    def reach(blocks: Sequence[int]) -> int:
        counts = [count + 1 for count in blocks]
        return min(max_model_len, context_that_fits(groups, counts, chunk=chunk))

    splits = [shared(budget, [0] * len(groups))]
    one = _one_sequence(groups, block_bytes, budget, max_model_len, chunk)
    if one:
        splits.append(shared(budget - sum(map(mul, one, block_bytes)), one))
    splits.append([budget // sum(block_bytes)] * len(groups))
    most = max_num_seqs * -(-max_model_len // size) + chunk // size
    return [min(blocks, most) + 1 for blocks in max(splits, key=reach)]


def _shares(groups: Sequence[KVGroupSpec], block_bytes: Sequence[int], longest: int) -> list[float]:
    """Return each group's part of the bytes, in proportion to its largest part at any length."""
    windows = [spec.window for spec in groups if spec.window is not None]
    lengths = {min(max(window, SHORT), longest) for window in windows} | {longest}
    largest = [0.0] * len(groups)
    for length in lengths:
        costs = list(map(mul, (_blocks_kept(spec, length) for spec in groups), block_bytes))
        largest = [max(one, cost / sum(costs)) for one, cost in zip(largest, costs, strict=True)]
    return [part / sum(largest) for part in largest]


def _blocks_kept(spec: KVGroupSpec, length: int) -> int:
    """Return the blocks that a sequence keeps between two steps; its window may begin and end in
    the middle of one."""
    kept = length if spec.window is None else min(length, _whole(spec.window, spec, chunk=0))
    return -(-kept // spec.block_size)


def _one_sequence(
    groups: Sequence[KVGroupSpec], block_bytes: Sequence[int], budget: int, longest: int, chunk: int
) -> list[int] | None:
    """Return the blocks of one sequence as long as finds room, at most `longest` tokens; None when
    not even its windows find room, or every group has one."""
    blocks = [
        0 if spec.window is None else -(-_whole(spec.window, spec, chunk) // spec.block_size)
        for spec in groups
    ]
    left = budget - sum(map(mul, blocks, block_bytes))
    full = sum(each for spec, each in zip(groups, block_bytes, strict=True) if spec.window is None)
    if left < 0 or not full:
        return None
    tokens = min(left // full, -(-longest // groups[0].block_size))
    return [count or tokens for count in blocks]


def _whole(window: int, spec: KVGroupSpec, chunk: int) -> int:
    """Return the tokens that one sequence of any length needs in a group with that window, while
    `chunk` tokens are computed at once."""
    return window + chunk + 2 * spec.block_size


def context_that_fits(
    groups: Sequence[KVGroupSpec], num_blocks: Sequence[int], *, chunk: int
) -> int:
    """The longest context that one sequence alone can reach in these pools, tokens."""
    longest = []
    for spec, blocks in zip(groups, num_blocks, strict=True):
        room = (blocks - 1) * spec.block_size
        if spec.window is None or room < _whole(spec.window, spec, chunk):
            longest.append(room)
    return min(longest, default=1 << 31)


def bytes_of_one(
    groups: Sequence[KVGroupSpec], block_bytes: Sequence[int], length: int, *, chunk: int
) -> int:
    """Bytes of pools, null blocks included, in which one sequence of `length` tokens fits."""
    blocks = -(-length // groups[0].block_size)
    null = sum(block_bytes)
    same = blocks * null
    if all(spec.window is not None for spec in groups):
        return same + null
    each = [
        blocks if spec.window is None else -(-_whole(spec.window, spec, chunk) // spec.block_size)
        for spec in groups
    ]
    whole: int = sum(map(mul, each, block_bytes))
    return min(same, whole) + null


def fit_context(
    wanted: int, explicit: bool, fitting: int, shortage: Callable[[], SettingsError]
) -> int:
    """The context to serve: `wanted`, or what fits when nobody asked for `wanted`.

    Raises what `shortage` makes when an explicit --max-model-len does not fit, or nothing useful
    does.
    """
    if wanted <= fitting:
        return wanted
    if explicit or fitting < MIN_CONTEXT:
        raise shortage()
    return fitting
