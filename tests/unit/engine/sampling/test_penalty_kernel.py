"""The penalty kernel against torch's own operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvasir_engine.sampling.sampling_state import SamplingState
from kvasir_engine.step_plan import RowInit, RowSampling

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SAMPLINGS = [
    RowSampling(seed=0, repetition_penalty=1.37),
    RowSampling(seed=0, presence_penalty=0.75),
    RowSampling(seed=0, frequency_penalty=-0.4),
    RowSampling(
        seed=0, presence_penalty=-0.5, frequency_penalty=0.3, repetition_penalty=0.8
    ),
]  # fmt: skip


@pytest.fixture
def penalise(triton_interpreter):
    from kvasir_engine.sampling.penalty_kernel import penalise

    return penalise


def make_state(vocab: int, samplings: list[RowSampling]) -> SamplingState:
    draw = np.random.default_rng(vocab)
    state = SamplingState(max_rows=len(samplings) + 1, vocab_size=vocab, device=DEVICE)
    ids = [draw.integers(0, vocab, 60).astype(np.int32) for _ in samplings]
    state.init_rows([RowInit(row, ids[row], 35, 0, [], each) for row, each in enumerate(samplings)])
    return state


@pytest.mark.parametrize("vocab", [1, 50, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_penalties_are_the_reference_s(penalise, vocab: int, dtype) -> None:
    state = make_state(vocab, SAMPLINGS)
    rows = torch.tensor([2, 0, 3, 1], device=DEVICE)
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(1)).to(dtype).to(DEVICE)
    logits[:, vocab // 2] = -torch.inf
    before = logits.clone()
    got = penalise(logits, rows, state.counts, state.tables)
    want = state.counts.apply(
        logits.float(),
        rows,
        repetition=state.repetition[rows].unsqueeze(1),
        presence=state.presence[rows].unsqueeze(1),
        frequency=state.frequency[rows].unsqueeze(1),
    )
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits, before)


def test_a_row_without_penalties_ignores_the_counts_of_another_before_it(penalise) -> None:
    state = make_state(50, SAMPLINGS)
    ids = np.array([1], dtype=np.int32)
    state.init_rows([RowInit(3, ids, 1, 0, [], RowSampling(seed=0))])
    logits = torch.randn(1, 50, device=DEVICE)
    rows = torch.tensor([3], device=DEVICE)
    assert torch.equal(penalise(logits, rows, state.counts, state.tables), logits)
