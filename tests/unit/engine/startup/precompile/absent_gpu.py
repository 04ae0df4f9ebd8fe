"""Stand for one H200 where there is none: what torch and Triton say of a device, and no more.

A mock since CI has no GPU; on one, `e2e/gpu/check.py` starts without compiling anything after the
precompilation. Used in processes of their own: it replaces functions of torch.cuda for good.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

CAPABILITY = (9, 0)
PROGRAM_BYTES = 227 << 10
PROCESSORS = 132


class _Stream:
    """Of launches that nobody makes."""

    cuda_stream = 0

    def wait_stream(self, other: Any) -> None:
        """Nothing to wait for."""


class _Event:
    """Of a stream that has no time."""

    def __init__(self, **_: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds."""
        return 0.0


class _Driver:
    """Triton's, of a device that is there only to be compiled for."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": PROGRAM_BYTES})

    @staticmethod
    def launcher_cls(_: Any, __: Any) -> None:
        """Launchers are linked with the driver's library, which is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


def pretend() -> torch.device:
    """The device, which is there from now on for whoever only asks about it."""
    torch._C._ensureCUDADeviceGuardSet()
    stream, properties = _Stream(), SimpleNamespace(multi_processor_count=PROCESSORS)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "get_device_name": lambda _=None: "NVIDIA H200",
        "get_device_capability": lambda _=None: CAPABILITY,
        "get_device_properties": lambda _=None: properties,
        "current_stream": lambda _=None: stream,
        "Stream": lambda _=None: stream,
        "stream": lambda _: nullcontext(),
        "Event": _Event,
        "synchronize": lambda _=None: None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    triton.runtime.driver.set_active(_Driver())
    return torch.device("cuda:0")
