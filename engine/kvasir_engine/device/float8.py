"""Float8 as everything here has it: e4m3, finite only."""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
"""Largest number of float8 e4m3."""


def is_fp8(tensor: torch.Tensor) -> bool:
    """Return True for a tensor of float8."""
    return tensor.dtype == FP8
