"""Copies from numpy arrays to the device that the CPU does not wait for."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def upload(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A tensor on `device` with the array's values; the array may be reused at once.

    CUDA copies start from pinned memory of torch's caching allocator, which keeps a block until
    the copy from it has run.
    """
    if device.type == "cuda":
        return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)
    return torch.from_numpy(array).clone()
