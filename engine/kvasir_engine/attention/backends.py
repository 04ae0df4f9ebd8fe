"""Which attention backend serves a device."""

from __future__ import annotations

import logging

import torch

from kvasir_engine.attention.base import AttentionBackend
from kvasir_engine.attention.torch_reference import TorchAttention
from kvasir_engine.device.capability import MIN_CAPABILITY, kernels_run_on, use_kernel_cache

log = logging.getLogger(__name__)


def make_backend(device: torch.device) -> AttentionBackend:
    """The fastest backend for `device`."""
    if kernels_run_on(device):
        use_kernel_cache()
        # Not at the top: it imports triton, which the CPU does not need.
        from kvasir_engine.attention.triton_backend import TritonAttention

        return TritonAttention(device)
    if device.type == "cuda":
        log.warning(
            "%s has a compute capability below %d.%d: attention and sampling run through the "
            "reference kernels, several times slower.",
            torch.cuda.get_device_name(device),
            *MIN_CAPABILITY,
        )
    return TorchAttention(device)
