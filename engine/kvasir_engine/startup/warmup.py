"""Warm-up steps: the largest step for memory profiling, and small ones that compile kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvasir_engine.grammar.matcher import num_words
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.runner.torch_runner import TorchRunner
from kvasir_engine.step_plan import Int32Array, RowInit, RowSampling, StepPlan

SMALL_BATCH_ROWS, LARGE_BATCH_ROWS = 1, 32
"""Kernels are launched differently for few rows and for some."""
PLAIN = RowSampling(seed=0, top_p=0.9)
PENALISED = RowSampling(seed=0, top_p=0.9, presence_penalty=0.1)
"""Penalties make other numbers of the logits, for which other kernels are compiled."""


def largest_step(
    tokens: int, num_rows: int, max_model_len: int, groups: tuple[KVGroupSpec, ...]
) -> StepPlan:
    """A step of `tokens` new tokens over as many rows as possible, each of which samples under
    penalties and with log-probabilities."""
    rows = min(num_rows, tokens)
    lengths = [min(max_model_len - 1, tokens // rows) for _ in range(rows)]
    size, next_block, inits = groups[0].block_size, 1, []
    for row, length in enumerate(lengths):
        count = -(-length // size)
        table: Int32Array = np.arange(next_block, next_block + count, dtype=np.int32)
        next_block += count
        inits.append(
            RowInit(
                row=row,
                token_ids=np.zeros(length, dtype=np.int32),
                num_prompt=length,
                num_computed=0,
                block_tables=[table for _ in groups],
                sampling=PENALISED,
            )
        )
    ids = np.arange(rows, dtype=np.int32)
    return StepPlan(
        step_id=-1,
        rows=ids,
        num_new=np.array(lengths, dtype=np.int32),
        starts=np.zeros(rows, dtype=np.int32),
        num_decodes=0,
        sample_entries=ids,
        sample_rows=ids,
        inits=inits,
        top_logprobs=1,
    )


def run_warmup_steps(runner: TorchRunner, num_rows: int, num_blocks: int) -> None:
    """Short prompts, then decodes beside a further prompt, so that no request waits for kernels
    that only such steps use. What is written into caches and rows nobody looks at; every row stays
    within its one block. Nothing is run for which there are too few rows or blocks."""
    tokens = min(runner.groups[0].block_size, runner.max_model_len) - 2
    for decodes in (SMALL_BATCH_ROWS, LARGE_BATCH_ROWS):
        rows = decodes + 1
        # The null block is nobody's.
        if tokens < 1 or rows > num_rows or rows >= num_blocks:
            return
        largest = largest_step(tokens * rows, rows, runner.max_model_len, runner.groups)
        for sampling in (PENALISED, PLAIN):
            inits = [replace(init, sampling=sampling) for init in largest.inits]
            prompts = replace(largest, inits=inits, top_logprobs=-1)
            for plan in (prompts, _masked(_mixed_step(prompts), runner.vocab_size)):
                runner.forward(plan)
                runner.sample(plan).wait()


def _masked(plan: StepPlan, vocab_size: int) -> StepPlan:
    """The same with masks that let all tokens follow."""
    rows = len(plan.sample_rows)
    masks: Int32Array = np.full((rows, num_words(vocab_size)), -1, dtype=np.int32)
    return replace(plan, masked=np.arange(rows, dtype=np.int32), masks=masks)


def _mixed_step(prompts: StepPlan) -> StepPlan:
    """All rows but the last decode; that one begins anew."""
    lengths = prompts.num_new.copy()
    lengths[:-1] = 1
    starts = prompts.num_new.copy()
    starts[-1] = 0
    return replace(
        prompts,
        num_new=lengths,
        starts=starts,
        num_decodes=len(lengths) - 1,
        inits=prompts.inits[-1:],
    )
