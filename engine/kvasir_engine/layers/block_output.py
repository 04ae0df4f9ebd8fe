"""Outputs of attention and MLPs whose last steps are left to the kernel that adds them.

A sum over many inputs is computed in parts, by more programs at a time than it has outputs for; and
some families norm an output before it is added. A kernel of its own for either would cost more than
what it does, so both wait for the one that adds the output to the residual and norms the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from kvasir_engine.kernels.norm_parameters import NormParameters


@dataclass(frozen=True, slots=True, eq=False)
class BlockOutput:
    """An output that is still to be summed or normed, on a device with fused kernels."""

    x: torch.Tensor
    """[tokens, size], or fp32 [parts, tokens, size], whose sum it is."""
    post: NormParameters | None = None
    """An RMS norm that comes next."""


Output: TypeAlias = torch.Tensor | BlockOutput
"""[tokens, size]."""


def pieces(output: Output) -> tuple[torch.Tensor, NormParameters | None]:
    """Return x and `post`."""
    return (output.x, output.post) if isinstance(output, BlockOutput) else (output, None)
