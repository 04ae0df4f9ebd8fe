"""Token ids, positions and slots of a step, gathered from the persistent batch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvasir_engine.device.capability import kernels_run_on

TokenInputs = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]
"""`torch_token_inputs`, or the kernel that does the same at once."""


def torch_token_inputs(
    rows: torch.Tensor,
    num_computed: torch.Tensor,
    history: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (ids, positions, lengths up to there, slots) of a token for each of `rows`: the first
    that has not been computed, or one `offsets` behind it.

    rows int64 [n], offsets int32 [n]; by row: num_computed [rows], history [rows, tokens], table
    [rows, blocks], all int32. int64 [n] each, but for the lengths, int32.
    """
    positions = num_computed[rows].long()
    if offsets is not None:
        positions += offsets
    ids = history[rows, positions].long()
    slots = table[rows, positions // block_size].long() * block_size + positions % block_size
    return ids, positions, (positions + 1).int(), slots


def token_inputs_on(device: torch.device) -> TokenInputs:
    """Return the fastest gather on `device`."""
    if not kernels_run_on(device):
        return torch_token_inputs
    # Not at the top: it imports triton, which the CPU does not need.
    from kvasir_engine.kernels.gather_token_inputs import token_inputs

    return token_inputs
