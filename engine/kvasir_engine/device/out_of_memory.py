"""Recognise an out-of-memory error of host or device, and turn it into one with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def raise_on_out_of_memory(shortage: Callable[[], ValueError]) -> Iterator[None]:
    """Raise what `shortage` makes when the block runs out of memory, on the host or on a device."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise shortage() from error


def is_shortage(error: Exception) -> bool:
    """Return True if the host or the device had no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # torch has no type of its own for the host's memory, nor for what libraries ask the device for.
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _SHORTAGES)


_SHORTAGES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
