"""Kernels compiled in a process without Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvasir_engine.kernels.tile_memory import HOPPER_BYTES

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def compiled(kernel, constants, types, capability, **options):
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in constants else types.get(name, "*i32") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name.endswith("_ptr")},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
"""
"""What programs find: a kernel for a compute capability; arguments without a type are *i32."""


@pytest.fixture
def program_bytes() -> dict[int, int]:
    """Of shared memory, by compute capability (CUDA programming guide, "Compute Capabilities")."""
    return {80: 163 << 10, 86: 99 << 10, 90: HOPPER_BYTES}


@pytest.fixture
def compiled_elsewhere(without_interpreter: Callable[..., str]) -> Callable[..., str]:
    """compiled_elsewhere(program, *arguments): what that Python program prints, to which `COMPILED`
    belongs."""
    return lambda program, *arguments: without_interpreter(COMPILED + program, *arguments)
