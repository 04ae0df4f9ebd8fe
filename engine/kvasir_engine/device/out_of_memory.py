"""Turn an out-of-memory error of host or device into an error with a remedy."""

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
        if not _is_shortage(error):
            raise
        raise shortage() from error


def _is_shortage(error: Exception) -> bool:
    # torch has no type of its own for the host's memory.
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "can't allocate memory" in str(error)
