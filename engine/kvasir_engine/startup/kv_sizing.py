"""Sizes that fit: blocks for a memory budget, context for a number of blocks. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir_engine.kv.cache_spec import CacheSpec, page_bytes
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.settings import SettingsError


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

    Groups are sized for the same number of sequences of half the longest context: one with a
    window needs no more than its window (and one step's chunk) of each. No group gets more than
    all rows at the longest context could use.
    """
    size = groups[0].block_size
    typical = max(max_model_len // 2, min(max_model_len, 16 * size))
    kept = [
        typical if spec.window is None else min(typical, spec.window + 2 * size) for spec in groups
    ]
    per_sequence = [-(-tokens // size) for tokens in kept]
    cost = sum(n * b for n, b in zip(per_sequence, block_bytes, strict=True))
    sequences = budget / cost
    most = max_num_seqs * -(-max_model_len // size) + max_num_batched_tokens // size
    return [min(int(sequences * n), most) + 1 for n in per_sequence]


def context_that_fits(
    groups: Sequence[KVGroupSpec], num_blocks: Sequence[int], *, chunk: int
) -> int:
    """The longest context that one sequence alone can reach in these pools, tokens."""
    size = groups[0].block_size
    longest = []
    for spec, blocks in zip(groups, num_blocks, strict=True):
        room = (blocks - 1) * size
        if spec.window is None or room < spec.window + chunk + 2 * size:
            longest.append(room)
    return min(longest, default=1 << 31)


def fit_context(wanted: int, explicit: bool, fitting: int, budget: int) -> int:
    """The context to serve: `wanted`, or what fits when nobody asked for `wanted`.

    Raises SettingsError when an explicit --max-model-len does not fit, or nothing useful does.
    """
    if wanted <= fitting:
        return wanted
    if explicit or fitting < 64:
        raise SettingsError(
            f"one sequence of {wanted} tokens does not fit: the KV cache of "
            f"{budget / 2**30:.2f} GiB holds {fitting}. Lower --max-model-len, or raise "
            "--gpu-memory-utilization or --kv-cache-memory-bytes."
        )
    return fitting
