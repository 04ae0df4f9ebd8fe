"""Which attention backend serves a device."""

from __future__ import annotations

import torch

from kvasir_engine.attention.base import AttentionBackend
from kvasir_engine.attention.torch_reference import TorchAttention


def make_backend(device: torch.device) -> AttentionBackend:
    """The fastest backend for `device`."""
    return TorchAttention(device)
