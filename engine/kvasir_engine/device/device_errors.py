"""Tell whether a CUDA device can go on after an error."""

from __future__ import annotations

import torch

from kvasir_engine.device.out_of_memory import is_shortage
from kvasir_engine.errors import DeviceError

_MARKS = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]", "CUBLAS_STATUS_", "NCCL error")


def require_usable(device: torch.device, error: Exception) -> None:
    """Raise DeviceError if `error` is the device's own, or if work launched before has failed.

    After such an error every further call fails, or computes with what the failed one left.
    """
    if _is_of_device(error):
        raise _device_error(error) from error
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as found:
        raise _device_error(found) from error


def _is_of_device(error: Exception) -> bool:
    if is_shortage(error):
        return False
    return isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and any(mark in str(error) for mark in _MARKS)
    )


def _device_error(error: Exception) -> DeviceError:
    return DeviceError(f"the GPU failed: {str(error).partition(chr(10))[0]}")
