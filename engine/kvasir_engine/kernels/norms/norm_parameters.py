"""Parameters of norms, as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class NormParameters(NamedTuple):
    """RMS norm x / rms(x) * (weight + offset), or with a bias LayerNorm (x - mean) / std * weight +
    bias."""

    weight: torch.Tensor
    """[size]."""
    eps: float
    offset: float = 0.0
    bias: torch.Tensor | None = None
    """[size]."""
