"""Dry runs for an absent GPU, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvasir_engine.startup.precompile.precompile import GpuProperties

WITHOUT_DRIVER = """
import json, os, sys, time
from kvasir_engine.startup.precompile import dry_run, fake_device
from kvasir_engine.startup.precompile.precompile import GpuProperties

# Launchers are linked with the driver's library, which is not there.
fake_device.CudaLauncher = lambda *_: None
"""
H200 = GpuProperties(
    "NVIDIA H200", 9, 0, multi_processor_count=132, shared_memory_per_block_optin=232448
)


@pytest.fixture
def h200() -> GpuProperties:
    """A GPU that is not here."""
    return H200


@pytest.fixture
def without_driver() -> str:
    """Beginning of programs that compile where there is no driver."""
    return WITHOUT_DRIVER


@pytest.fixture
def without_gpu(without_interpreter: Callable[..., str]) -> Callable[..., Any]:
    """without_gpu(program, *arguments): the JSON of its last line."""
    begin = f"{WITHOUT_DRIVER}\ngpu = {H200!r}\ndevice = fake_device.fake_gpu(gpu)\n"

    def run(program: str, *arguments: str) -> Any:
        return json.loads(without_interpreter(begin + program, *arguments).splitlines()[-1])

    return run
