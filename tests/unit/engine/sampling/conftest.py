"""A sampler over a small vocabulary with rows set up from plain parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import torch

    from kvasir_engine.sampling.sampler import RowBiases, Sampled
    from kvasir_engine.step_plan import RowSampling

HISTORY = 64


class SamplerBench:
    """Rows of a sampling state, each with a history, and steps over any of them."""

    def __init__(self, *, max_rows: int, vocab_size: int) -> None:
        import torch

        from kvasir_engine.sampling.sampler import Sampler
        from kvasir_engine.sampling.sampling_state import SamplingState

        device = torch.device("cpu")
        self.state = SamplingState(max_rows=max_rows, vocab_size=vocab_size, device=device)
        self.sampler = Sampler(self.state)
        self.history = torch.zeros(max_rows, HISTORY, dtype=torch.int32)
        self.lengths = torch.zeros(max_rows, dtype=torch.int64)
        self.num_prompt = torch.zeros(max_rows, dtype=torch.int32)

    def init(
        self, row: int, sampling: RowSampling, tokens: list[int], num_prompt: int | None = None
    ) -> None:
        """`row` begins with these tokens, all prompt unless num_prompt says otherwise."""
        import torch

        from kvasir_engine.step_plan import RowInit

        prompt = len(tokens) if num_prompt is None else num_prompt
        ids = np.array(tokens, dtype=np.int32)
        self.state.init_rows([RowInit(row, ids, prompt, 0, [], sampling)])
        self.history[row, : len(tokens)] = torch.from_numpy(ids)
        self.lengths[row] = len(tokens)
        self.num_prompt[row] = prompt

    def step(
        self,
        rows: list[int],
        logits: torch.Tensor,
        *,
        positions: list[int] | None = None,
        biases: RowBiases | None = None,
        **options: Any,
    ) -> Sampled:
        """Sample for these rows from a copy of logits [rows, vocab] and append to histories."""
        import torch

        from kvasir_engine.sampling.sampler import SampleBatch

        index = torch.tensor(rows)
        at = self.lengths[index] if positions is None else torch.tensor(positions)
        batch = SampleBatch(
            rows=index,
            rows_cpu=np.array(rows, dtype=np.int32),
            positions=at,
            history=self.history,
            num_prompt=self.num_prompt,
            biases=biases,
        )
        sampled = self.sampler(logits.clone(), batch, **options)
        if positions is None:
            self.history[index, at] = sampled.tokens
            self.lengths[index] += 1
        return sampled


@pytest.fixture
def sampler_bench() -> type[SamplerBench]:
    """The class SamplerBench: a sampler on the CPU whose rows a test fills."""
    return SamplerBench
