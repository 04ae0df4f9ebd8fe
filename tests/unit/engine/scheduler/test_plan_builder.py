from __future__ import annotations

import numpy as np

from kvasir_engine.kv.block_table import BlockTables
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.plan_builder import Chunk, PlanBuilder, int32
from kvasir_engine.scheduler.sequence import Sequence, make_sequences
from kvasir_engine.step_plan import RowFork

COMPUTED = int32([10, 20, 30, 0, 4])
NO_LOGPROBS = int32([-1] * 5)


def sequence(row: int, prompt_logprobs: int | None = None) -> Sequence:
    params = SamplingParams(prompt_logprobs=prompt_logprobs)
    made = make_sequences(EngineRequest("r", 0, [1] * 6, params), order=0, seed=0, max_model_len=32)
    made.row = row
    return made


def test_nothing_to_compute_is_no_plan() -> None:
    assert PlanBuilder(0, 8).build(COMPUTED, NO_LOGPROBS) is None


def test_decodes_come_before_chunks() -> None:
    builder = PlanBuilder(3, 8, decodes=int32([2, 0, 1]))
    builder.chunks = [Chunk(sequence(3), 0, 4, samples=False), Chunk(sequence(4), 4, 2, True)]
    plan = builder.build(COMPUTED, int32([-1, -1, 6, 9, -1]))
    assert plan is not None
    assert (plan.step_id, plan.num_decodes, plan.num_tokens) == (3, 3, 9)
    assert plan.rows.tolist() == [2, 0, 1, 3, 4]
    assert plan.num_new.tolist() == [1, 1, 1, 4, 2]
    assert plan.starts.tolist() == [30, 10, 20, 0, 4]
    assert plan.sample_rows.tolist() == [2, 0, 1, 4], "a chunk inside a prompt samples nothing"
    assert plan.sample_entries.tolist() == [0, 1, 2, 4]
    assert plan.top_logprobs == 6


def test_forks_sample_from_their_leads_entry() -> None:
    builder = PlanBuilder(0, 8, decodes=int32([0]), chunks=[Chunk(sequence(3), 0, 6, True)])
    sampling = sequence(3).sampling
    builder.forks = [RowFork(3, 1, [], sampling), RowFork(3, 4, [], sampling)]
    plan = builder.build(COMPUTED, NO_LOGPROBS)
    assert plan is not None
    assert plan.sample_entries.tolist() == [0, 1, 1, 1]
    assert plan.sample_rows.tolist() == [0, 3, 1, 4]
    assert plan.top_logprobs == -1


def test_appended_blocks_name_their_place_in_every_group() -> None:
    builder = PlanBuilder(0, 8, decodes=int32([0]))
    builder.append_blocks(2, BlockTables([[7, 8, 9], [1, 2, 3]], b""), [[8, 9], [2, 3]])
    builder.append_blocks(0, BlockTables([[5], [6]], b""), [[5], [6]])
    plan = builder.build(COMPUTED, NO_LOGPROBS)
    assert plan is not None
    assert [a.rows.tolist() for a in plan.appends] == [[2, 2, 0]] * 2
    assert [a.index.tolist() for a in plan.appends] == [[1, 2, 0]] * 2
    assert [a.blocks.tolist() for a in plan.appends] == [[8, 9, 5], [2, 3, 6]]


def test_copies_are_pairs_by_group() -> None:
    builder = PlanBuilder(0, 8, decodes=int32([0]))
    builder.add_copies([(1, 2), (3, 4)])
    builder.add_copies([(5, 6), (7, 8)])
    plan = builder.build(COMPUTED, NO_LOGPROBS)
    assert plan is not None
    assert [np.array(c).tolist() for c in plan.copies] == [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]


def test_each_prompt_position_is_reported_once_and_the_last_never() -> None:
    asks = sequence(3, prompt_logprobs=2)
    spans = []
    for start, count in ((0, 4), (0, 5), (5, 1)):  # the second recomputes after a preemption
        builder = PlanBuilder(0, 8, chunks=[Chunk(asks, start, count, samples=False)])
        plan = builder.build(COMPUTED, NO_LOGPROBS)
        assert plan is not None
        spans.append([(p.entry, p.first, p.last, p.top) for p in plan.prompt_logprobs])
    assert spans == [[(0, 0, 4, 2)], [(0, 4, 5, 2)], []]
