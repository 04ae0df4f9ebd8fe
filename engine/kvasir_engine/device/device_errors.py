"""Tell whether a CUDA device can go on after an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kvasir_engine.device.out_of_memory import is_shortage
from kvasir_engine.device.process_end import device_failed
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


@contextmanager
def seen_at_once() -> Iterator[None]:
    """Have the process ended by an error of the device in the body where it first shows, with all
    that is on the device still held; raise it where the process is not to end so."""
    try:
        yield
    except Exception as error:
        if _is_of_device(error):
            _device_error(error)
        raise


def _is_of_device(error: Exception) -> bool:
    if is_shortage(error):
        return False
    return isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and any(mark in str(error) for mark in _MARKS)
    )


def _device_error(error: Exception) -> DeviceError:
    found = DeviceError(f"the GPU failed: {str(error).partition(chr(10))[0]}")
    device_failed(found)
    return found
