"""Say whether tokens are right: what transformers finds likeliest, or as likely as that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

FP32_BOUND = 1e-3
Tokens = list[list[int]]


class Judge:
    """transformers in fp32 on the CPU, and in bf16 for the bound."""

    def __init__(self, model_dir: Path, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        def load(kind: torch.dtype) -> Any:
            return AutoModelForCausalLM.from_pretrained(
                model_dir, attn_implementation="eager", dtype=kind
            ).eval()

        self._exact = load(torch.float32)
        self._rounded = load(torch.bfloat16) if dtype == "bfloat16" else None

    @torch.inference_mode()
    def scores(self, tokens: list[int]) -> tuple[torch.Tensor, float]:
        """Log-probabilities [len(tokens), vocab], and the bound for this sequence."""
        ids = torch.tensor([tokens])
        exact = self._exact(ids, use_cache=False).logits[0].float().log_softmax(-1)
        if self._rounded is None:
            return exact, FP32_BOUND
        rounded = self._rounded(ids, use_cache=False).logits[0].float().log_softmax(-1)
        return exact, 2 * (exact - rounded).abs().max().item()

    def unlikely(self, prompt: list[int], tokens: list[int]) -> str | None:
        """Return what is wrong with greedy tokens, if anything."""
        exact, bound = self.scores(prompt + tokens)
        for i, token in enumerate(tokens):
            row = exact[len(prompt) - 1 + i]
            if row[token] < row.max() - bound:
                return f"token {i} is {(row.max() - row[token]).item():.4f} below the best"
        return None

    def differ(self, prompt: list[int], one: list[int], other: list[int]) -> str | None:
        """Return what is wrong with two runs' tokens, if anything."""
        if one == other:
            return None
        at = next(i for i, pair in enumerate(zip(one, other, strict=True)) if len(set(pair)) > 1)
        exact, bound = self.scores(prompt + one[:at])
        gap = abs((exact[-1][one[at]] - exact[-1][other[at]]).item())
        return None if gap < bound else f"parted at {at} by {gap:.4f}, bound {bound:.4f}"


@dataclass
class Row:
    """Line of the report."""

    name: str
    outcome: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def compare(
        self, column: str, given: Tokens, found: Callable[[int], str | None], happened: bool
    ) -> None:
        """Note how many of `given` are right."""
        faults = [fault for i in range(len(given)) if (fault := found(i)) is not None]
        if not happened:
            faults.append("it did not happen")
        self.faults += [f"{self.name}, {column}: {fault}" for fault in faults]
        self.outcome[column] = "same" if not faults else f"**{len(faults)} wrong**"
