"""Buffers from which a captured step reads its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvasir_engine.runner.batch import StepInputs


@dataclass(frozen=True, slots=True)
class TokenBuffers:
    """Tokens of the size that a graph was captured for; a step with fewer is padded, and padding
    is written to the null block."""

    token_ids: torch.Tensor
    """[size] int64, as are positions and slots."""
    positions: torch.Tensor
    slots: list[torch.Tensor]
    """One a KV group."""

    @classmethod
    def of_size(cls, size: int, num_groups: int, device: torch.device) -> TokenBuffers:
        """Return buffers of `size` that hold padding alone."""

        def zeros() -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int64, device=device)

        return cls(zeros(), zeros(), [zeros() for _ in range(num_groups)])

    def copy_inputs(self, inputs: StepInputs) -> int:
        """Copy a step's tokens in, and return their number."""
        tokens = len(inputs.token_ids)
        self.token_ids[:tokens].copy_(inputs.token_ids)
        self.positions[:tokens].copy_(inputs.positions)
        for slots, batch in zip(self.slots, inputs.batches, strict=True):
            slots[:tokens].copy_(batch.slot_mapping)
            slots[tokens:].zero_()
        return tokens
