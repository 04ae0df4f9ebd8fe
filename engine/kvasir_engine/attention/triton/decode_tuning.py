"""Launch parameters of decodes, as measured on an H200 with 8 KV heads of 128 numbers in 16 bits
(benchmarks/gpu/attention.py): contexts of 1,100 tokens, and of 200 to 2,000; on an H100 with other
heads (`--layers`), contexts of 1,024 tokens, and of 200 to 2,000.

Programs of one warp and few keys at a time are many on a multiprocessor, which hides that each
waits for its keys; of four warps and 128 keys there are two or three, which end together where
contexts differ. Which of the two is faster changes with how many rounds of programs there are: on a
GPU of more or fewer multiprocessors the thresholds move in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvasir_engine.attention.triton.merge import MAX_SPLITS
from kvasir_engine.device.tile_memory import TileTuning


@dataclass(frozen=True, slots=True)
class DecodeTuning(TileTuning):
    """Launch parameters of the decode kernel."""

    rows: int = field(default=0, kw_only=True)
    """In shared memory: a program's few queries are not kept there."""
    keys: int = 64
    """Keys of one iteration."""
    warps: int = 2
    stages: int = 3
    parts: int | None = None
    """Parts of each entry's keys, at most; None = as many as fill the GPU `PROGRAMS_PER_SM`
    times."""
    min_keys: int = 128
    """Fewest keys worth a part of their own."""


PROGRAMS_PER_SM = 4
MEASURED_MULTIPROCESSORS = 132
"""An H200's."""
_SMALL, _LARGE = DecodeTuning(32, 1, 6), DecodeTuning(128, 4, 3, parts=1)
_BY_PROGRAMS = (
    (23, DecodeTuning(128, 4, 2)),
    (159, _SMALL),
    (239, replace(_SMALL, parts=6)),
    # Two on each multiprocessor, one whole round: 13 % less than in six parts with 64 equal
    # contexts and 4 KV heads, and 4 to 7 % more with unequal ones.
    (264, replace(_LARGE, stages=2)),
    (319, replace(_SMALL, parts=6)),
    (447, _LARGE),
    # Two on each multiprocessor: two whole rounds.
    (528, replace(_LARGE, stages=2)),
    (2039, _LARGE),
)
"""Up to so many entries x KV heads; more are `_MANY`."""
_MANY = DecodeTuning(32, 1, 4, parts=1)
_FP8_BY_PROGRAMS = (
    (23, DecodeTuning(128, 4, 2)),
    (95, DecodeTuning(64, 2, 4, parts=8)),
    (191, DecodeTuning(128, 4, 3, parts=3)),
    (447, _LARGE),
    (800, DecodeTuning(128, 2, 2, parts=1)),
)
"""The same for float8, as measured on an H100 (`--kv-cache-dtype fp8 --layers 32/8/128`); more are
`_FP8_MANY`. More warps than with 16 bits: each has numbers to convert."""
_FP8_MANY = DecodeTuning(32, 2, 2, parts=1)
_WIDE = DecodeTuning(32, 4, 2)
"""For heads of more than 128 numbers, as measured on an H100 with 64 contexts of 1,000 tokens and 8
KV heads of 256: 181 us, 2.9 TB/s; 64 keys in three stages, which leave room for one program on a
multiprocessor, took 236."""


def as_measured(programs: int, multiprocessors: int) -> int:
    """Return how many programs fill an H200 as much as `programs` fill that many multiprocessors,
    rounded up."""
    return -(-programs * MEASURED_MULTIPROCESSORS // multiprocessors)


def tuning_for(
    programs: int, padded_dim: int, multiprocessors: int, *, fp8: bool = False
) -> DecodeTuning:
    """Return the launch parameters for `programs` = entries x KV heads, over float8 or 16 bits."""
    if padded_dim > 128:
        return _WIDE
    programs = as_measured(programs, multiprocessors)
    if fp8:
        return next((tuning for most, tuning in _FP8_BY_PROGRAMS if programs <= most), _FP8_MANY)
    if padded_dim <= 64 and 447 < programs <= 528:
        # Of small heads more than two fit on a multiprocessor.
        return _LARGE
    return next((tuning for most, tuning in _BY_PROGRAMS if programs <= most), _MANY)


def suffix_tuning_for(programs: int, padded_dim: int, multiprocessors: int) -> DecodeTuning:
    """Return the launch parameters for the keys after a shared prefix, which are few."""
    if as_measured(programs, multiprocessors) >= 1024 and padded_dim <= 128:
        return _MANY
    return DecodeTuning(keys=32, stages=2 if padded_dim > 128 else 4)


def split_kv_tuning_for(padded_dim: int) -> DecodeTuning:
    """Return the launch parameters for split-KV over contexts of very different lengths."""
    return DecodeTuning() if padded_dim > 128 else _LARGE


def num_parts(
    entries: int, kv_heads: int, longest: int, multiprocessors: int, tuning: DecodeTuning
) -> int:
    """Parts of the keys: enough programs for the GPU, enough keys for a part."""
    most = max(1, min(longest // tuning.min_keys, MAX_SPLITS))
    if tuning.parts is not None:
        return min(most, tuning.parts)
    wanted = multiprocessors * PROGRAMS_PER_SM // max(1, entries * kv_heads)
    parts = 1
    while parts * 2 <= min(wanted, most):
        parts *= 2
    return parts
