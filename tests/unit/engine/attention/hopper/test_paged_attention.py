"""Gluon has no interpreter: here the kernels are compiled for Hopper, without one. What they
compute is tested with the other kernels (test_triton_backend.py) where there is one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import triton

from kvasir_engine.attention.base import AttentionSpec

pytestmark = pytest.mark.slow

SHARED_BYTES = 227 << 10
"""Of a multiprocessor, for one program."""
COMPILE = """
import sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from kvasir_engine.attention.hopper import paged_attention as h
from kvasir_engine.attention.hopper.attend_tiles import AttentionShape

shape = AttentionShape({shape})
types = {{
    "q_ptr": "*bf16",
    "cache": f"tensordesc<bf16[1, 1, {{shape.block}}, 64],{{h.PAGE_LAYOUT.value!r}}>",
    "out_ptr": "*fp32" if shape.shared else "*bf16",
    "lse_ptr": "*fp32",
    "sinks_ptr": "*bf16",
    "q_stride": "i32",
    "table_stride": "i32",
    "nowhere": "i32",
    "scale": "fp32",
    "total_parts": "i32",
    "parts": "i32",
}}
constants = h.constants(shape) | {{"PDL": True}}
names = h.attend_tiles.arg_names
signature = {{
    name: "constexpr" if name in constants else types.get(name, "*i32") for name in names
}}
source = GluonASTSource(
    h.attend_tiles,
    signature,
    {{(names.index(name),): value for name, value in constants.items()}},
    {{(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name.endswith("ptr")}},
)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=h.OPTIONS)
Path(sys.argv[1]).write_bytes(made.asm["cubin"])
print(made.metadata.shared)
"""


@pytest.mark.parametrize(
    "shape",
    [
        "block=16, heads=32, group=4, tokens=32, dim=128",
        "block=16, heads=32, group=4, tokens=32, dim=128, shared=True, tile=32",
        "block=32, heads=8, group=2, tokens=64, dim=256, window=4096, cap=50.0",
        "block=8, heads=7, group=7, tokens=18, dim=80",
        "block=16, heads=64, group=8, tokens=16, dim=64, window=128, sinks=True",
    ],
)
def test_compiles_within_a_multiprocessors_means(
    shape: str, tmp_path: Path, compiled_elsewhere: Callable[..., str]
) -> None:
    cubin = tmp_path / "kernel.cubin"
    shared = compiled_elsewhere(COMPILE.format(shape=shape), str(cubin))
    assert int(shared) <= SHARED_BYTES
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run(
        [tool, "-res-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    (stack,) = re.findall(r"STACK:(\d+)", usage)
    # Accumulators that do not fit registers would take hundreds of bytes.
    assert int(stack) <= 200


@pytest.fixture
def hopper(triton_interpreter):
    from kvasir_engine.attention.hopper import paged_attention

    return paged_attention


@pytest.mark.parametrize(
    ("heads", "dim", "dtype", "block", "fits"),
    [
        ((32, 8), 128, torch.bfloat16, 16, True),
        ((7, 1), 24, torch.float16, 8, True),
        ((4, 2), 256, torch.bfloat16, 64, True),
        ((4, 2), 128, torch.float32, 16, False),
        ((4, 2), 512, torch.bfloat16, 16, False),
        ((4, 2), 128, torch.bfloat16, 4, False),
        ((4, 2), 256, torch.bfloat16, 128, False),
        ((256, 1), 64, torch.bfloat16, 16, False),
        ((4, 4), 12, torch.bfloat16, 16, False),
        ((4, 4), 16, torch.bfloat16, 16, True),
    ],
)
def test_what_it_computes(hopper, heads, dim, dtype, block, fits) -> None:
    spec = AttentionSpec(0, heads[0], heads[1], dim, 1.0)
    cache = torch.empty(2, 1, block, heads[1], dim, dtype=dtype)
    assert hopper.supports_layer(spec, cache) is fits
