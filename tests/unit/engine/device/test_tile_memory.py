"""Tiles of the Triton kernels, compiled here for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvasir_engine.device.tile_memory import USED, fitted, tile_bytes

pytestmark = pytest.mark.slow

COMPILE = """
from kvasir_engine.attention.triton.shared_prefix import SharedTuning, _shared_prefix

capability, dim, size, most = {numbers}
tuning = SharedTuning().fitted(dim, size, most)
number = {{1: "bf16", 2: "bf16", 4: "fp32"}}[size]
stored = "i16" if size == 1 else number
constants = dict(
    TILE=32, ENTRIES=tuning.rows // 4, HEADS=32, KV_HEADS=8, GROUP=4, ROWS=tuning.rows, DIM=dim,
    PADDED_DIM=dim, BLOCK=16, KEYS=tuning.keys, CAP=0.0, PRECISION="ieee", PDL=False,
    FP8=size == 1, ASM=True,
)
types = dict(
    q_ptr="*" + number, cache_ptr="*" + stored, out_ptr="*fp32", lse_ptr="*fp32", scale="fp32",
    value_scale="fp32",
    q_stride="i32", table_stride="i32", total_parts="i32", value_offset="i64",
)
warps = tuning.warps if tuning.rows > 64 else 4
made = compiled(
    _shared_prefix, constants, types, capability, num_warps=warps, num_stages=tuning.stages
)
print(made.metadata.shared)
"""


@pytest.mark.parametrize(
    ("capability", "dim", "itemsize"),
    [(86, 64, 4), (80, 256, 2), (90, 128, 2), (90, 128, 1)],
)
def test_common_prefixes_fit_a_multiprocessor(
    capability: int,
    dim: int,
    itemsize: int,
    compiled_elsewhere: Callable[..., str],
    program_bytes: dict[int, int],
) -> None:
    most = program_bytes[capability]
    numbers = (capability, dim, itemsize, int(most * USED))
    assert int(compiled_elsewhere(COMPILE.format(numbers=numbers))) <= most


def test_what_fits_stays_as_it_is() -> None:
    most = tile_bytes(torch.device("cpu"))
    assert fitted(64, 64, 2, row_bytes=256, most=most) == (64, 64, 2)
    rows, keys, stages = fitted(128, 128, 3, row_bytes=1024, most=most)
    assert 1024 * (rows + 2 * keys * stages) <= most


def test_there_is_an_end_to_making_it_less() -> None:
    assert fitted(128, 128, 3, row_bytes=1 << 20, most=1) == (16, 16, 1)
