"""Repetition, presence and frequency penalties over token counts kept on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvasir_engine.device.upload import upload
from kvasir_engine.step_plan import Int32Array

IN_PROMPT = 1 << 30
"""The bit of a count that says the token stands in the prompt; lower bits count outputs."""


class PenaltyCounts:
    """Counts of the tokens each row has seen: int32 [max_rows, vocab], 4 * max_rows * vocab bytes.

    Allocated once, so that what is left for the KV cache is known at start; only rows with
    penalties are ever written.
    """

    def __init__(self, *, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.by_row = torch.zeros(max_rows, vocab_size, dtype=torch.int32, device=device)
        """The counts, as `IN_PROMPT` divides them; of rows that never had penalties, anything."""
        self._vocab_size = vocab_size
        self._device = device

    def init_rows(
        self, rows: list[int], token_ids: list[Int32Array], num_prompt: list[int]
    ) -> None:
        """Count known tokens anew: each row's first num_prompt as prompt, the rest as output."""
        offsets = [row * self._vocab_size for row in rows]
        pairs = list(zip(token_ids, num_prompt, offsets, strict=True))
        prompt = [ids[:n].astype(np.int64) + offset for ids, n, offset in pairs]
        output = [ids[n:].astype(np.int64) + offset for ids, n, offset in pairs]
        self.by_row.index_fill_(0, upload(np.array(rows, dtype=np.int64), self._device), 0)
        flat = self.by_row.view(-1)
        flat.scatter_(0, upload(np.concatenate(prompt), self._device), IN_PROMPT)
        index = upload(np.concatenate(output), self._device)
        flat.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32))

    def copy_rows(self, sources: list[int], destinations: list[int]) -> None:
        """Each destination row takes its source's counts."""
        pairs = upload(np.array([sources, destinations], dtype=np.int64), self._device)
        self.by_row.index_copy_(0, pairs[1], self.by_row.index_select(0, pairs[0]))

    def record(self, rows: Tensor, tokens: Tensor) -> None:
        """Count one output token for each of `rows` (int64 [n] both), which may repeat."""
        index = rows * self._vocab_size + tokens
        self.by_row.view(-1).scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32))

    def apply(
        self, logits: Tensor, rows: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
    ) -> Tensor:
        """Penalised copies of logits [n, vocab] fp32 of `rows` [n]; the penalties are [n, 1].

        Repetition (Keskar et al. 2019, section 4.1) divides positive and multiplies negative
        logits of every token seen; frequency and presence (OpenAI) subtract by output alone.
        """
        counts = self.by_row.index_select(0, rows)
        factor = torch.where(counts != 0, repetition, 1.0)
        penalised = torch.where(logits > 0, logits / factor, logits * factor)
        outputs = counts.bitwise_and_(IN_PROMPT - 1)
        penalised -= frequency * outputs
        penalised -= presence * (outputs > 0)
        return penalised
