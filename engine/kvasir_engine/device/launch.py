"""Programmatic dependent launch: a kernel is set up while the one before it still runs.

A kernel launched so may start before the one before it has ended; what it reads of that one it
may touch only after `begin`. From there on the next kernel may be set up in turn (CUDA C++
programming guide, "Programmatic dependent launch and synchronization"; compute capability 9.0).
"""

from __future__ import annotations

from functools import cache
from typing import TypedDict

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


class LaunchOptions(TypedDict):
    """Keyword arguments of a launch: `PDL` for the kernel, the other for the driver."""

    PDL: bool
    launch_pdl: bool


@cache
def launch_options(device: torch.device) -> LaunchOptions:
    """Return options for a dependent launch where the device has it."""
    has = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"PDL": has, "launch_pdl": has}


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for what earlier kernels write, then let the next one be set up."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def prefetch(pointers, PDL: tl.constexpr):
    """Ask for the cache lines at `pointers`, which no earlier kernel writes."""
    if PDL:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [pointers.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
