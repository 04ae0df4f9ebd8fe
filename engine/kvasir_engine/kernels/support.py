"""Where the kernels run."""

from __future__ import annotations

import torch

OLDEST_CAPABILITY = (8, 0)
"""Compute capability from which the Triton kernels are used: bf16 tensor cores."""


def kernels_run_on(device: torch.device) -> bool:
    """Whether `device` is a GPU that the kernels are made for."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY
