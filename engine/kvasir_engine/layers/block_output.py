"""Outputs of attention and MLPs whose last steps are left to the kernel that adds them.

A sum over many inputs is computed in parts, by more programs at a time than it has outputs for;
several ranks each have a share of it; and some families norm an output before it is added. A kernel
of its own for any of these would cost more than what it does, so they wait for the one that adds
the output to the residual and norms the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from kvasir_engine.device.collectives import all_reduce, one_shot_sum
from kvasir_engine.kernels.norms.norm_parameters import NormParameters

if TYPE_CHECKING:
    from kvasir_engine.device.communicators.one_shot_kernel import OneShotSum


@dataclass(frozen=True, slots=True, eq=False)
class BlockOutput:
    """An output that is still to be summed or normed, on a device with fused kernels."""

    x: torch.Tensor
    """[tokens, size], or fp32 [parts, tokens, size], whose sum it is."""
    post: NormParameters | None = None
    """An RMS norm that comes next."""
    ranks: OneShotSum | None = None
    """The kernels' sum over ranks, which comes before all that, where x is this rank's share."""


Output: TypeAlias = torch.Tensor | BlockOutput
"""[tokens, size]."""


def block_output(output: Output) -> BlockOutput:
    """Return the same as a BlockOutput."""
    return output if isinstance(output, BlockOutput) else BlockOutput(output)


def over_ranks(share: torch.Tensor) -> Output:
    """Return the sum over ranks of contiguous [tokens, size], of which this rank has a share, or
    leave it to the next kernel."""
    ranks = one_shot_sum(share.numel() * share.itemsize, share.dtype)
    return all_reduce(share) if ranks is None else BlockOutput(share, ranks=ranks)
