"""What a row keeps of its sampling parameters, and what it forgets when it begins anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kvasir_engine.sampling.sampling_state import SamplingState
from kvasir_engine.step_plan import RowFork, RowInit, RowSampling

VOCAB = 50


@pytest.fixture
def state() -> SamplingState:
    return SamplingState(max_rows=4, vocab_size=VOCAB, device=torch.device("cpu"))


def init(row: int, tokens: list[int] | None = None, **sampling: Any) -> RowInit:
    ids = np.array(tokens or [1], dtype=np.int32)
    return RowInit(row, ids, 1, 0, [], RowSampling(**{"seed": 0, **sampling}))


def flags(state: SamplingState, row: int) -> tuple[bool, ...]:
    arrays = (state.random, state.has_top_p, state.has_top_k, state.has_min_p, state.has_penalties)
    return tuple(bool(array[row]) for array in arrays)


def test_only_features_that_do_something_count(state: SamplingState) -> None:
    state.init_rows(
        [
            init(0, temperature=0.0, top_k=VOCAB),
            init(1, temperature=1e-6, top_p=0.9, presence_penalty=0.5),
            init(2, temperature=0.7, top_k=5, min_p=0.1),
        ]
    )
    assert flags(state, 0) == (False,) * 5
    assert flags(state, 1) == (False, True, False, False, True)
    assert flags(state, 2) == (True, False, True, True, False)
    assert state.max_top_k[:3].tolist() == [VOCAB, VOCAB, 5]
    assert state.temperature[2].item() == pytest.approx(0.7)


def test_a_row_that_begins_anew_keeps_nothing(state: SamplingState) -> None:
    busy: dict[str, Any] = {
        "logit_bias": {3: 1.0},
        "allowed_token_ids": [3, 4],
        "bad_words": [[5]],
        "stop_ids": [9],
        "min_tokens": 2,
        "repetition_penalty": 1.5,
    }
    state.init_rows([init(1, [3, 3], **busy)])
    rows = np.array([1], dtype=np.int32)
    lists = (state.bias, state.allowed, state.early_stops, state.bad_words)
    assert all(each.of_batch(rows) is not None for each in lists)
    state.init_rows([init(1)])
    assert all(each.of_batch(rows) is None for each in lists)
    assert flags(state, 1) == (True, False, False, False, False)


def test_stop_ids_are_banned_only_where_there_are_min_tokens(state: SamplingState) -> None:
    state.init_rows([init(0, stop_ids=[9]), init(1, stop_ids=[9], min_tokens=1)])
    found = state.early_stops.of_batch(np.array([0, 1], dtype=np.int32))
    assert found is not None
    assert found.flat.tolist() == [VOCAB + 9]


def test_a_fork_has_its_own_index_and_its_sources_counts(state: SamplingState) -> None:
    penalty: dict[str, Any] = {"seed": 1 << 40, "frequency_penalty": 1.0}
    state.init_rows([init(0, [1, 7, 7], **penalty)])
    state.fork_rows([RowFork(0, 3, [], RowSampling(**penalty, sample_index=2))])
    keys = state.noise_keys(torch.tensor([0, 3]), torch.tensor([5, 6]))
    assert (keys.seed_low.tolist(), keys.seed_high.tolist()) == ([0, 0], [256, 256])
    assert (keys.position.tolist(), keys.sample_index.tolist()) == ([5, 6], [0, 2])
    assert flags(state, 3) == flags(state, 0)
    none, one = torch.zeros(2, 1), torch.ones(2, 1)
    logits = torch.zeros(2, VOCAB)
    lead, fork = state.counts.apply(logits, torch.tensor([0, 3]), one, none, one)
    assert torch.equal(lead, fork)
    assert fork[7].item() == -2


def test_tokens_are_chosen_by_score_unless_others_matter(state: SamplingState) -> None:
    state.init_rows(
        [init(0), init(1, temperature=0.0, top_p=0.5), init(2, top_k=5), init(3, bad_words=[[5]])]
    )
    by_score = [state.choose_by_score(np.array([row], dtype=np.int32)) for row in range(4)]
    assert by_score == [True, True, False, False]
    assert state.choose_by_score(np.array([0, 1], dtype=np.int32))
    assert not state.choose_by_score(np.array([0, 2], dtype=np.int32))


def test_forced_tokens_are_counted_where_there_are_penalties(state: SamplingState) -> None:
    state.init_rows([init(0, presence_penalty=0.5), init(1)])
    rows, tokens = np.array([0, 1, 0, 0], np.int32), np.array([7, 7, 7, 9], np.int32)
    state.count(rows, tokens)
    state.count(rows[1:2], tokens[1:2])
    assert state.counts.by_row[0, [7, 9]].tolist() == [2, 1]
    assert not state.counts.by_row[1].any()
