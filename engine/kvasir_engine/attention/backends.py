"""The choice of attention backends, by what a layer's pages hold and by device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvasir_engine.attention.base import AttentionBackend
from kvasir_engine.attention.torch_reference import TorchAttention
from kvasir_engine.device.capability import kernels_run_on
from kvasir_engine.device.kernel_cache import use_kernel_cache
from kvasir_engine.kv.cache_spec import CacheSpec, KVCacheSpec


def make_backends(specs: Sequence[CacheSpec], device: torch.device) -> list[AttentionBackend]:
    """Return each layer's backend, the same one for layers with equal specs."""
    made = {spec: make_backend(spec, device) for spec in dict.fromkeys(specs)}
    return [made[spec] for spec in specs]


def make_backend(spec: CacheSpec, device: torch.device) -> AttentionBackend:
    """Return the fastest backend for pages of `spec` on `device`."""
    if not isinstance(spec, KVCacheSpec):
        raise TypeError(f"no attention backend reads pages of {spec!r}.")
    if kernels_run_on(device):
        use_kernel_cache()
        # Not at the top: it imports triton, which the CPU does not need.
        from kvasir_engine.attention.triton_backend import TritonAttention

        return TritonAttention(device)
    return TorchAttention(device)
