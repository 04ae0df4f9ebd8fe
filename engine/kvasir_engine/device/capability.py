"""Device capability: which GPUs the Triton kernels support, and where kernels are cached."""

from __future__ import annotations

import os

import torch

from kvasir.text.tokenizer_conversion import cache_directory


def use_kernel_cache() -> None:
    """Keep compiled kernels below KVASIR_CACHE, unless TRITON_CACHE_DIR says where.

    To be called before Triton is imported.
    """
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_directory() / "triton"))


MIN_CAPABILITY = (8, 0)
"""Compute capability from which the Triton kernels are used: bf16 tensor cores."""


def kernels_run_on(device: torch.device) -> bool:
    """Return True for a GPU that the kernels are made for."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
