"""Decode kernels compiled here for GPUs that are not here. What they compute is checked in Triton's
interpreter, and on a GPU, with the attention backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvasir_engine.device.tile_memory import USED

COMPILE = """
from kvasir_engine.attention.triton import decode_tuning, paged_decode, split_kv as decode_parts

capability, dim, size, most = {numbers}

number = {{1: "*bf16", 2: "*bf16", 4: "*fp32"}}[size]
types = dict(
    q_ptr=number, cache_ptr="*i16" if size == 1 else number, out_ptr=number, sinks_ptr=number,
    parts_ptr="*fp32", lse_ptr="*fp32",
    scale="fp32", value_scale="fp32", q_stride="i32", table_stride="i32", value_offset="i64",
    parts="i32", prefix_parts="i32",
)
pdl = capability >= 90
found = []
for divided in (False, True):
    for programs in (8, 64, 512, 1024, 2048):
        tuning = decode_tuning.tuning_for(programs, dim, 132, fp8=size == 1)
        if divided:
            tuning = decode_tuning.split_kv_tuning_for(dim)
        tuning = tuning.fitted(dim, size, most)
        constants = dict(
            SPLIT=False, SHARED=False, JOINED=False, ORDERED=True, SPLIT_KV=divided, SINKS=True,
            HEADS=32, KV_HEADS=8, GROUP=4, ROWS=16, DIM=dim, PADDED_DIM=dim, BLOCK=16,
            FP8=size == 1, ASM=True, KEYS=tuning.keys, WINDOW=0, CAP=0.0, PRECISION="ieee",
            AT_ONCE=tuning.warps, PDL=pdl,
        )
        options = dict(num_warps=tuning.warps, num_stages=tuning.stages)
        made = compiled(paged_decode._decode, constants, types, capability, **options)
        found.append(made.metadata.shared)
        if divided:
            break
splits = dict(PADDED_ENTRIES=512, AT_ONCE=8, KEYS=128, MIN_KEYS=128, PDL=pdl)
compiled(decode_parts._split_keys, splits, dict(entries="i32", extra="i32"), capability)
print(max(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "dim", "size"), [(90, 128, 2), (90, 128, 1), (80, 128, 4), (86, 256, 2)]
)
def test_tiles_fit_a_multiprocessor(
    capability: int,
    dim: int,
    size: int,
    compiled_elsewhere: Callable[..., str],
    program_bytes: dict[int, int],
) -> None:
    most = program_bytes[capability]
    numbers = (capability, dim, size, int(most * USED))
    assert 0 < int(compiled_elsewhere(COMPILE.format(numbers=numbers))) <= most
