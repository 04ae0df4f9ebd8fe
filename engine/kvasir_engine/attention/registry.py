"""Which attention backend serves a device."""

from __future__ import annotations

import logging

import torch

from kvasir_engine.attention.base import AttentionBackend
from kvasir_engine.attention.torch_reference import TorchAttention

log = logging.getLogger(__name__)

OLDEST_CAPABILITY = (8, 0)
"""Compute capability from which the Triton kernels are used: bf16 tensor cores."""


def make_backend(device: torch.device) -> AttentionBackend:
    """The fastest backend for `device`."""
    if device.type != "cuda":
        return TorchAttention(device)
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        log.warning(
            "compute capability %d.%d is below %d.%d: attention runs through the reference "
            "kernels, several times slower.",
            *capability,
            *OLDEST_CAPABILITY,
        )
        return TorchAttention(device)
    # Not at the top: it imports triton, which the CPU does not need.
    from kvasir_engine.attention.triton_backend import TritonAttention

    return TritonAttention(device)
