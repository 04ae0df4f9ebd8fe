"""Errors of a start that finds too little memory: each names flags, their values and a remedy."""

from __future__ import annotations

import math

from kvasir.engine_values import MAX_MEMORY_UTILIZATION
from kvasir_engine.settings import CacheSettings, EngineSettings, SettingsError

MIN_CONTEXT = 64
"""Tokens of the shortest context that an engine starts with when no length is asked for."""


def share_that_fits(utilization: float, missing: int, total: int) -> float | None:
    """Return the --gpu-memory-utilization, in hundredths, that gives `missing` bytes more of
    `total`; None when no share does."""
    # Rounded first: 0.58 * 100 is a little more than 58
    hundredths = math.ceil(round((utilization + missing / total) * 100, 6))
    share = hundredths / 100
    return share if share <= MAX_MEMORY_UTILIZATION else None


def no_kv_memory(
    settings: EngineSettings, missing: int, total: int, taken: dict[str, int]
) -> SettingsError:
    """`taken`, bytes by owner, leaves too little of a GPU's `total` bytes for the KV cache: by
    `missing` bytes, those of the shortest context that may be served included."""
    utilization = settings.cache.gpu_memory_utilization
    parts = ", ".join(f"{owner} {gib(size)}" for owner, size in taken.items())
    share = share_that_fits(utilization, missing, total)
    if share is not None:
        remedy = f"raise it to {share:.2f}"
    else:
        eager = "" if settings.enforce_eager else " set --enforce-eager,"
        remedy = (
            f"no share is enough:{eager} lower --max-num-batched-tokens"
            f" ({settings.scheduler.max_num_batched_tokens}) or --max-num-seqs"
            f" ({settings.scheduler.max_num_seqs}), or raise --tensor-parallel-size"
            f" ({settings.tensor_parallel_size})"
        )
    return SettingsError(
        f"--gpu-memory-utilization {utilization} allows {gib(int(total * utilization))} of"
        f" {gib(total)}, which leaves no memory for the KV cache ({parts}); {remedy}."
    )


def short_context(
    settings: EngineSettings, wanted: int, fitting: int, sizes: tuple[int, int], total: int | None
) -> SettingsError:
    """`sizes`, the bytes of the KV cache and those that it needs, hold `fitting` tokens rather than
    `wanted`; `total` is the memory of the GPU, None on a CPU."""
    held, needed = sizes
    asked = "" if settings.max_model_len is None else f"--max-model-len {settings.max_model_len}: "
    ways = [f"lower --max-model-len to {fitting}"] if fitting >= MIN_CONTEXT else []
    more = _more_kv(settings.cache, held, needed, total)
    if more or not ways:
        ways.append(more or f"raise --tensor-parallel-size ({settings.tensor_parallel_size})")
    return SettingsError(
        f"{asked}one sequence of {wanted} tokens does not fit, since the KV cache of"
        f" {held / 2**30:.2f} GiB holds {fitting}; {', or '.join(ways)}."
    )


def _more_kv(cache: CacheSettings, held: int, needed: int, total: int | None) -> str:
    """Return how to have a KV cache of `needed` bytes; "" when no flag of the cache's does."""
    if total is None or cache.kv_cache_memory_bytes is not None:
        default = "" if cache.kv_cache_memory_bytes is None else f"{cache.kv_cache_memory_bytes} "
        return f"raise --kv-cache-memory-bytes {default}to {needed}"
    utilization = cache.gpu_memory_utilization
    share = share_that_fits(utilization, needed - held, total)
    return "" if share is None else f"raise --gpu-memory-utilization {utilization} to {share:.2f}"


def too_many_rows(
    settings: EngineSettings, length: int, asked: int, device: str, free: int | None
) -> SettingsError:
    """The state of all rows, `asked` bytes, does not fit; `free` bytes are, None = unknown."""
    rows = settings.scheduler.max_num_seqs
    fitting = rows if free is None else rows * free // asked
    to = f" to {fitting}" if 0 < fitting < rows else ""
    has = "less" if free is None else gib(free)
    return SettingsError(
        f"--max-num-seqs {rows}: the state of {rows} sequences of {length} tokens needs about"
        f" {asked / 2**30:.2f} GiB on {device}, which has {has} free; lower --max-num-seqs{to}, or"
        f" --max-model-len ({length})."
    )


def too_many_blocks(
    settings: EngineSettings, length: int, asked: int, device: str, left: int | None
) -> SettingsError:
    """The KV cache, `asked` bytes, does not fit; `left` are free beside the largest step and CUDA
    graphs, None = unknown."""
    given = settings.cache.kv_cache_memory_bytes
    value = "" if given is None else f" {given}"
    to = f" to {left} at most" if left is not None and left > 0 else ""
    has = "less free" if left is None else f"{gib(max(0, left))} for it"
    return SettingsError(
        f"--kv-cache-memory-bytes{value}: the KV cache needs {asked / 2**30:.2f} GiB on {device},"
        f" which has {has}; lower --kv-cache-memory-bytes{to}, or --max-num-seqs"
        f" ({settings.scheduler.max_num_seqs}) or --max-model-len ({length})."
    )


def too_large_a_step(settings: EngineSettings, device: str, free: int) -> SettingsError:
    """The largest step does not fit beside the weights, where `free` bytes are."""
    tokens, rows = settings.scheduler.max_num_batched_tokens, settings.scheduler.max_num_seqs
    if tokens > rows:
        remedy = f"lower --max-num-batched-tokens to {max(tokens // 2, rows)}"
    else:
        remedy = f"lower --max-num-seqs ({rows}) and --max-num-batched-tokens"
    return SettingsError(
        f"--max-num-batched-tokens {tokens}: a step of {tokens} tokens does not fit beside the"
        f" weights on {device}, which has {gib(free)} free; {remedy}, or raise"
        f" --tensor-parallel-size ({settings.tensor_parallel_size})."
    )


def gib(size: int) -> str:
    """Return bytes as text, in GiB."""
    return f"{size / 2**30:.1f} GiB"
