"""A step's tokens in the buffers of a larger one."""

from __future__ import annotations

import torch

from kvasir_engine.attention.base import AttentionBatch
from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.graphs.token_buffers import TokenBuffers


def inputs_of(*slots: list[int]) -> StepInputs:
    """Of as many tokens as each list has slots, a list for each KV group."""
    nothing = torch.zeros(0, dtype=torch.int32)
    tokens = torch.arange(1, len(slots[0]) + 1)
    batches = [
        AttentionBatch(
            block_table=nothing,
            slot_mapping=torch.tensor(each),
            query_start=nothing,
            seq_lens=nothing,
            num_decodes=0,
            max_seq_len=0,
            query_lens_cpu=[],
            seq_lens_cpu=[],
        )
        for each in slots
    ]
    return StepInputs(tokens, 10 * tokens, batches, nothing, nothing, nothing)


def test_padding_after_a_longer_step_is_written_to_the_null_block() -> None:
    buffers = TokenBuffers.of_size(4, 2, torch.device("cpu"))
    assert buffers.copy_inputs(inputs_of([5, 6, 7, 8], [9, 9, 9, 9])) == 4
    assert buffers.copy_inputs(inputs_of([3, 4], [6, 7])) == 2
    assert buffers.token_ids[:2].tolist() == [1, 2]
    assert buffers.positions[:2].tolist() == [10, 20]
    assert [slots.tolist() for slots in buffers.slots] == [[3, 4, 0, 0], [6, 7, 0, 0]]
