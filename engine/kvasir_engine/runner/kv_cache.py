"""The KV cache's memory: how many blocks fit, their tensors, and copies between blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvasir_engine.attention.base import AttentionSpec
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.runner.plan import Int32Array
from kvasir_engine.settings import SettingsError


def bytes_per_block(spec: KVGroupSpec, layers: Sequence[AttentionSpec], dtype: torch.dtype) -> int:
    """Bytes of one block of a group: K and V of all its layers."""
    return sum(
        2 * spec.block_size * layers[i].num_kv_heads * layers[i].head_dim * dtype.itemsize
        for i in spec.layers
    )


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
            f"{budget / 2**30:.2f} GiB holds {fitting}. Lower --max-model-len, or raise --gpu-memory-utilization or "
            "--kv-cache-memory-bytes."
        )
    return fitting


def allocate(
    layers: Sequence[AttentionSpec],
    groups: Sequence[KVGroupSpec],
    num_blocks: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """A zeroed cache [2, blocks, block_size, kv_heads, head_dim] for each layer.

    Zeroed, so that masked positions of never-written slots hold finite numbers.
    """
    blocks_of_layer = {
        layer: (count, spec.block_size)
        for spec, count in zip(groups, num_blocks, strict=True)
        for layer in spec.layers
    }
    return [
        torch.zeros(
            (2, *blocks_of_layer[i], spec.num_kv_heads, spec.head_dim), dtype=dtype, device=device
        )
        for i, spec in enumerate(layers)
    ]


def copy_blocks(caches: Sequence[torch.Tensor], pairs: Int32Array) -> None:
    """cache[:, destination] = cache[:, source] for every pair, in every cache."""
    if not len(pairs):
        return
    index = torch.from_numpy(pairs.astype("int64")).to(caches[0].device, non_blocking=True)
    for cache in caches:
        cache[:, index[:, 1]] = cache[:, index[:, 0]]
