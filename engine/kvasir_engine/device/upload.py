"""Copies from numpy arrays to the device that the CPU does not wait for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNED: Final = 16
"""Byte alignment that kernels expect of tensors."""


def upload(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return a tensor on `device` with the array's values; the array may be reused at once.

    CUDA copies start from pinned memory of torch's caching allocator, which keeps a block until
    the copy from it has run.
    """
    if device.type == "cuda":
        return pinned(torch.from_numpy(array)).to(device, non_blocking=True)
    return torch.from_numpy(array).clone()


def pinned(tensor: Tensor) -> Tensor:
    """Return a copy in memory that the device reads by itself."""
    return tensor.pin_memory()


def upload_all(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Upload each by a single copy: a copy costs the CPU more than what it carries."""
    if device.type != "cuda":
        return [upload(array, device) for array in arrays]
    starts = aligned_starts(arrays)
    staged = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=True)
    return unpack(pack(staged, arrays, starts).to(device, non_blocking=True), arrays, starts)


def aligned_starts(arrays: Sequence[npt.NDArray[Any]]) -> list[int]:
    """Return the aligned byte offset of each array in a packed buffer, and the total size."""
    starts = [0]
    for array in arrays:
        starts.append(starts[-1] + -(-array.nbytes // ALIGNED) * ALIGNED)
    return starts


def pack(staged: Tensor, arrays: Sequence[npt.NDArray[Any]], starts: list[int]) -> Tensor:
    """Return `staged` uint8, filled with the arrays' bytes at `starts`."""
    into = staged.numpy()
    for array, start in zip(arrays, starts, strict=False):
        into[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return staged


def unpack(packed: Tensor, arrays: Sequence[npt.NDArray[Any]], starts: list[int]) -> list[Tensor]:
    """Return views of what was packed, each of its array's shape and type."""
    return [
        packed[start : start + array.nbytes].view(torch_type(array.dtype)).view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]


@cache
def torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the type of a tensor made of an array of `dtype`."""
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype
