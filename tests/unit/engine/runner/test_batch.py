"""The device's persistent batch against plain lists."""

from __future__ import annotations

import numpy as np
import torch

from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.runner.batch import DeviceBatch
from kvasir_engine.step_plan import (
    BlockAppends,
    RowFork,
    RowInit,
    RowSampling,
    StepPlan,
)

SAMPLING = RowSampling(seed=1)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def make_batch() -> DeviceBatch:
    return DeviceBatch(
        num_rows=4,
        max_tokens=64,
        groups=(KVGroupSpec((0,), 16), KVGroupSpec((1,), 16, 24)),
        device=torch.device("cpu"),
    )


def init(row: int, tokens: int, computed: int, *tables: np.ndarray) -> RowInit:
    history = np.arange(100 * row, 100 * row + tokens, dtype=np.int32)
    return RowInit(row, history, tokens, computed, list(tables), SAMPLING)


def plan(**fields: object) -> StepPlan:
    base = {
        "step_id": 0,
        "rows": ints(),
        "num_new": ints(),
        "starts": ints(),
        "num_decodes": 0,
        "sample_entries": ints(),
        "sample_rows": ints(),
    }
    return StepPlan(**{**base, **fields})  # type: ignore[arg-type]


def test_inputs_are_gathered_from_the_rows() -> None:
    batch = make_batch()
    batch.apply(
        plan(
            inits=[init(2, 20, 16, ints(5), ints(7)), init(0, 40, 39, ints(1, 2, 3), ints(0, 4, 6))]
        )
    )
    appended = BlockAppends(ints(2), ints(1), ints(9))
    step = plan(
        rows=ints(0, 2),
        num_new=ints(1, 4),
        starts=ints(39, 16),
        num_decodes=1,
        appends=[appended, BlockAppends(ints(2), ints(1), ints(11))],
    )
    batch.apply(step)
    inputs = batch.inputs(step)
    assert inputs.positions.tolist() == [39, 16, 17, 18, 19]
    assert inputs.token_ids.tolist() == [39, 216, 217, 218, 219]
    assert inputs.query_ends.tolist() == [0, 4]
    full, window = inputs.batches
    assert full.slot_mapping.tolist() == [3 * 16 + 7, *(9 * 16 + i for i in range(4))]
    assert window.slot_mapping.tolist() == [6 * 16 + 7, *(11 * 16 + i for i in range(4))]
    assert full.seq_lens.tolist() == [40, 20]
    assert full.block_table[0].tolist() == [1, 2, 3]
    batch.advance(inputs)
    assert batch.num_computed[:4].tolist() == [40, 0, 20, 0]


def test_accepted_tokens_extend_history_and_are_the_next_input() -> None:
    batch = make_batch()
    batch.apply(plan(inits=[init(1, 3, 0, ints(1), ints(1))]))
    batch.num_computed[1] = 3
    batch.accept(torch.tensor([1]), torch.tensor([77], dtype=torch.int32))
    assert batch.num_tokens[1] == 4
    step = plan(rows=ints(1), num_new=ints(1), starts=ints(3), num_decodes=1)
    assert batch.inputs(step).token_ids.tolist() == [77]


def test_a_replaced_token_is_the_next_input_and_a_row_that_begins_anew_keeps_its_own() -> None:
    batch = make_batch()
    batch.apply(plan(inits=[init(row, 4, 3, ints(1), ints(1)) for row in (1, 2)]))
    step = plan(
        replaced=np.array([[1, 3, 77], [2, 3, 88]], dtype=np.int32),
        inits=[init(2, 4, 3, ints(2), ints(2))],
        rows=ints(1, 2),
        num_new=ints(1, 1),
        starts=ints(3, 3),
        num_decodes=2,
    )
    batch.apply(step)
    assert batch.inputs(step).token_ids.tolist() == [77, 203]


def test_forced_tokens_follow_in_their_order_and_a_row_that_begins_anew_keeps_its_own() -> None:
    batch = make_batch()
    batch.apply(plan(inits=[init(1, 4, 3, ints(5), ints(6)), init(2, 4, 3, ints(7), ints(8))]))
    forced = np.array([[1, 4, 77], [2, 4, 88], [1, 5, 78]], dtype=np.int32)
    batch.apply(plan(forced=forced, inits=[init(2, 6, 3, ints(7), ints(8))]))
    assert batch.num_tokens[:4].tolist() == [0, 6, 6, 0]
    assert batch.history[1, 3:6].tolist() == [103, 77, 78]
    assert batch.history[2, 4:6].tolist() == [204, 205]


def test_a_fork_copies_history_and_lengths_but_not_tables() -> None:
    batch = make_batch()
    batch.apply(plan(inits=[init(0, 18, 18, ints(1, 2), ints(3, 4))]))
    batch.fork([RowFork(0, 3, [ints(1, 8), ints(3, 9)], SAMPLING)])
    assert batch.history[3, :18].tolist() == batch.history[0, :18].tolist()
    assert (batch.num_tokens[3], batch.num_computed[3], batch.num_prompt[3]) == (18, 18, 18)
    assert batch.tables[0][3, :2].tolist() == [1, 8]
    assert batch.tables[1][3, :2].tolist() == [3, 9]


def test_a_decode_gathered_on_the_device_equals_one_that_the_cpu_knows() -> None:
    """What is captured reads the same as what is launched; the spare row touches only the null
    block."""
    batch = make_batch()
    batch.apply(
        plan(inits=[init(2, 20, 19, ints(5, 9), ints(7, 8)), init(0, 40, 39, *[ints(1, 2, 3)] * 2)])
    )
    step = plan(rows=ints(2, 0), num_new=ints(1, 1), starts=ints(19, 39), num_decodes=2)
    known = batch.inputs(step)
    rows = torch.tensor([2, 0, batch.padding_row])
    gathered = batch.decode_inputs(rows)
    for name in ("token_ids", "positions", "num_new", "query_ends"):
        assert torch.equal(getattr(gathered, name)[:2], getattr(known, name)), name
    assert gathered.positions[2] == 0
    for mine, theirs in zip(gathered.batches, known.batches, strict=True):
        width = theirs.block_table.shape[1]
        assert torch.equal(mine.block_table[:2, :width], theirs.block_table)
        assert torch.equal(mine.slot_mapping[:2], theirs.slot_mapping)
        assert torch.equal(mine.seq_lens, torch.cat([theirs.seq_lens, torch.tensor([1])]))
        assert mine.slot_mapping[2] == 0
        assert mine.num_decodes == 3
        assert mine.max_seq_len >= theirs.max_seq_len
