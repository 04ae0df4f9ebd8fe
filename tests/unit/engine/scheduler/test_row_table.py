from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.row_table import STOP_IDS_IN_TABLE, RowTable
from kvasir_engine.scheduler.sequence import Sequence, make_sequences


def sequence(prompt: list[int], eos: list[int] | None = None, **params: Any) -> Sequence:
    request = EngineRequest("r", 3, prompt, SamplingParams(**params), eos_token_ids=eos or [])
    return make_sequences(request, order=7, seed=1, max_model_len=32)


def test_a_row_starts_with_its_sequences_state_whoever_had_it_before() -> None:
    rows = RowTable(1, 33)
    first = sequence([1] * 9, [5], max_tokens=4, logprobs=2)
    row = rows.acquire(first)
    rows.computed[row], rows.last_step[row] = 9, 12
    rows.finished[row] = rows.active[row] = rows.special[row] = True
    rows.release(row)
    assert not rows.active[row]
    assert not rows.special[row]
    assert first.row == -1
    second = sequence([2, 3], max_tokens=None)
    assert rows.acquire(second) == second.row == row
    assert (rows.known[row], rows.total[row], rows.computed[row]) == (2, 2, 0)
    assert (rows.limit[row], rows.logprobs[row]) == (32, -1)
    assert (rows.last_step[row], rows.finished[row]) == (-1, False)
    assert rows.sequence(row) is second
    assert not rows.hits_stop(np.array([row], np.int32), np.array([5], np.int32))[0]


def test_a_released_row_returns_its_known_tokens_alone() -> None:
    rows = RowTable(2, 33)
    row = rows.acquire(sequence([4, 5, 6]))
    rows.history[row, 3:5] = [7, 8]
    rows.known[row], rows.total[row] = 4, 5
    tokens = rows.release(row)
    rows.history[row] = 0
    assert tokens.tolist() == [4, 5, 6, 7]
    assert rows.num_free == 2
    with pytest.raises(AssertionError, match="no owner"):
        rows.sequence(row)


@pytest.mark.parametrize("count", [1, STOP_IDS_IN_TABLE, STOP_IDS_IN_TABLE + 1])
def test_every_stop_id_ends_its_own_row_alone(count: int) -> None:
    rows = RowTable(2, 33)
    stops = list(range(10, 10 + count))
    stopping, other = rows.acquire(sequence([1], stop_token_ids=stops)), rows.acquire(sequence([1]))
    both = np.array([stopping, other], np.int32)
    for stop in stops:
        assert rows.hits_stop(both, np.array([stop, stop], np.int32)).tolist() == [True, False]
    assert not rows.hits_stop(both, np.array([9, 9], np.int32)).any()
