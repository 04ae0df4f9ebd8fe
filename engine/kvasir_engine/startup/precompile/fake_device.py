"""Fake GPU: torch and Triton describe one that is absent, and launch nothing.

For processes of their own: what is replaced here stays so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime.jit import JITFunction

from kvasir_engine.device import upload
from kvasir_engine.device.host_copy import HostCopy
from kvasir_engine.startup.precompile.precompile import GpuProperties


class FakeLaunches:
    """Fake torch.cuda stream, event or graph: there are no launches, and its methods do nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any arguments."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        """Return a method that does nothing."""
        return lambda *_, **__: None

    def elapsed_time(self, _: FakeLaunches) -> float:
        """Return an infinite time, so that few graphs are captured."""
        return math.inf


def fake_gpu(gpu: GpuProperties) -> torch.device:
    """Have torch and Triton describe `gpu` from now on, compile for it and launch nothing."""
    launch, target = JITFunction.run, GPUTarget("cuda", 10 * gpu.major + gpu.minor, 32)

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launch(self, *args, grid=grid, warmup=True, **kwargs)

    def nothing_copied(copy: HostCopy) -> dict[str, npt.NDArray[Any]]:
        return {
            name: np.zeros(tensor.shape, dtype=str(tensor.dtype).removeprefix("torch."))
            for name, tensor in copy.tensors.items()
        }

    replaced: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            **dict.fromkeys(("is_available", "is_initialized"), lambda: True),
            "current_device": lambda: 0,
            "get_device_name": lambda _=None: gpu.name,
            "get_device_capability": lambda _=None: (gpu.major, gpu.minor),
            "get_device_properties": lambda _=None: gpu,
            "current_stream": FakeLaunches,
            "stream": nullcontext,
            "synchronize": lambda _=None: None,
            **dict.fromkeys(("CUDAGraph", "Event", "Stream"), FakeLaunches),
        },
        JITFunction: {"run": compile_only},
        upload: {"pack": lambda host, *_: host, "pinned": lambda host: host},
        HostCopy: {"wait": nothing_copied},
    }
    for owner, others in replaced.items():
        for name, other in others.items():
            setattr(owner, name, other)
    torch._C._ensureCUDADeviceGuardSet()
    driver = SimpleNamespace(
        launcher_cls=CudaLauncher,
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
    )
    triton.runtime.driver.set_active(driver)
    return torch.device("cuda:0")
