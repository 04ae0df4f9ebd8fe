"""Device capability: which GPUs the Triton kernels support."""

from __future__ import annotations

import torch

MIN_CAPABILITY = (8, 0)
"""Compute capability from which the Triton kernels are used: bf16 tensor cores."""


def kernels_run_on(device: torch.device) -> bool:
    """Return True for a GPU that the kernels are made for."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
