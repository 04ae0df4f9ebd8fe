"""The choice of attention backends, by what a layer's pages hold and by device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvasir_engine.attention.base import AttentionBackend, AttentionSpec
from kvasir_engine.attention.torch_reference import TorchAttention
from kvasir_engine.device.capability import kernels_run_on
from kvasir_engine.device.kernel_cache import use_kernel_cache
from kvasir_engine.kv.cache_spec import CacheSpec, KVCacheSpec


@dataclass(frozen=True, slots=True)
class Fp8Cache:
    """Sizes and types by which backends are made for caches of float8."""

    specs: Sequence[AttentionSpec]
    """One a layer."""
    tokens: int
    """Most tokens of a sequence."""
    block_size: int
    dtype: torch.dtype
    """The model's."""


def make_backends(
    specs: Sequence[CacheSpec], device: torch.device, fp8: Fp8Cache | None = None
) -> list[AttentionBackend]:
    """Return each layer's backend, the same one for layers with equal specs; `fp8` where the
    caches are of float8."""
    for spec in specs:
        if not isinstance(spec, KVCacheSpec):
            raise TypeError(f"no attention backend reads pages of {spec!r}.")
    if not kernels_run_on(device):
        made: dict[CacheSpec, AttentionBackend] = {spec: TorchAttention(device) for spec in specs}
        return [made[spec] for spec in specs]
    use_kernel_cache()
    # Not at the top: they import triton, which the CPU does not need.
    from kvasir_engine.attention.triton.widened_pages import WidenedPages
    from kvasir_engine.attention.triton_backend import TritonAttention

    pages = None
    if fp8 is not None:
        pages = WidenedPages(
            fp8.specs,
            tokens=fp8.tokens,
            block_size=fp8.block_size,
            dtype=fp8.dtype,
            device=device,
        )
    kernels = {spec: TritonAttention(device, pages=pages) for spec in specs}
    return [kernels[spec] for spec in specs]
