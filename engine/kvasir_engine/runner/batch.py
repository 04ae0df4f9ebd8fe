"""The persistent batch on the device: token history, lengths and block tables by row.

The device holds the truth about lengths; a plan only says what changes. Positions, input ids,
slots and block tables of a step are gathered here, on the device, from what stands in the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvasir_engine.attention.base import AttentionBatch
from kvasir_engine.device.capability import kernels_run_on
from kvasir_engine.device.upload import upload, upload_all
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.runner.split_kv_choice import needs_split_kv
from kvasir_engine.runner.token_inputs import token_inputs_on
from kvasir_engine.step_plan import (
    Int32Array,
    Int64Array,
    RowFork,
    RowInit,
    StepPlan,
)


@dataclass(slots=True)
class StepInputs:
    """Inputs of the forward pass of one step, on the device."""

    token_ids: torch.Tensor
    """[tokens] int64."""
    positions: torch.Tensor
    """[tokens] int64."""
    batches: list[AttentionBatch]
    """One a KV group."""
    rows: torch.Tensor
    """[entries] int64."""
    num_new: torch.Tensor
    """[entries] int32."""
    query_ends: torch.Tensor
    """[entries] int64: index of each entry's last token in the flattened batch."""


@dataclass(frozen=True, slots=True)
class _Spans:
    """Assignment of tokens to entries, as AttentionBatch has it."""

    query_start: torch.Tensor
    num_decodes: int
    query_lens: list[int]
    longest: list[int]
    """Upper bounds of lengths, on the CPU."""
    decode_order: torch.Tensor | None = None
    split_kv: bool = False


class DeviceBatch:
    """Device arrays by row. Memory: rows * max_tokens * 4 bytes of history, and the block
    tables."""

    def __init__(
        self,
        *,
        num_rows: int,
        max_tokens: int,
        groups: tuple[KVGroupSpec, ...],
        device: torch.device,
    ) -> None:
        self.device = device
        self.groups = groups
        self.block_size = groups[0].block_size
        self.max_blocks = -(-max_tokens // self.block_size)
        self._token_inputs = token_inputs_on(device)

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        # One row more than can be owned: what pads a decode to a captured size.
        self.padding_row = num_rows
        rows = num_rows + 1
        self.history = zeros(rows, max_tokens)
        # One beside the other, so that new rows' are written at once.
        self._counts = zeros(3, rows)
        self.num_tokens, self.num_computed, self.num_prompt = self._counts.unbind(0)
        self.tables = [zeros(rows, self.max_blocks) for _ in groups]

    # -- deltas -----------------------------------------------------------------------------

    def apply(self, plan: StepPlan) -> None:
        """Apply replaced and forced tokens, inits and block appends, in the plan's order of
        effects."""
        if plan.replaced is not None:
            self._write(self.history, *plan.replaced.T)
        if plan.forced is not None:
            self._write(self.history, *plan.forced.T)
            rows = upload(plan.forced[:, 0].astype(np.int64), self.device)
            self.num_tokens.index_add_(0, rows, torch.ones_like(rows, dtype=torch.int32))
        if plan.inits:
            self._init(plan.inits)
        for table, appended in zip(self.tables, plan.appends, strict=False):
            self._write(table, appended.rows, appended.index, appended.blocks)

    def _init(self, inits: list[RowInit]) -> None:
        rows = np.array([init.row for init in inits], dtype=np.int64)
        counts = [(len(init.token_ids), init.num_computed, init.num_prompt) for init in inits]
        scattered = [
            _scattered(self.history, rows, [init.token_ids for init in inits]),
            *self._tables_of(rows, [init.block_tables for init in inits]),
        ]
        parts: list[npt.NDArray[Any]] = [part for pair in scattered for part in pair]
        # All of it in one copy to the device.
        at, counted, *flat = upload_all(
            [rows, np.array(counts, dtype=np.int32).T, *parts], self.device
        )
        self._counts.index_copy_(1, at, counted)
        for i, target in enumerate([self.history, *self.tables]):
            target.view(-1).index_copy_(0, *flat[2 * i : 2 * i + 2])

    def fork(self, forks: list[RowFork]) -> None:
        """Make each dst a copy of its src as it stands now."""
        src = upload(np.array([fork.src for fork in forks], dtype=np.int64), self.device)
        rows = np.array([fork.dst for fork in forks], dtype=np.int64)
        dst = upload(rows, self.device)
        for array in (self.history, self.num_tokens, self.num_computed, self.num_prompt):
            array[dst] = array[src]
        self._scatter_tables(rows, [fork.block_tables for fork in forks])

    def _write(
        self, target: torch.Tensor, rows: Int32Array, index: Int32Array, values: Int32Array
    ) -> None:
        at = rows.astype(np.int64) * target.shape[1] + index
        target.view(-1).index_copy_(0, *upload_all((at, values), self.device))

    def _scatter_tables(self, rows: Int64Array, by_row: list[list[Int32Array]]) -> None:
        for table, scattered in zip(self.tables, self._tables_of(rows, by_row), strict=True):
            table.view(-1).index_copy_(0, *upload_all(scattered, self.device))

    def _tables_of(
        self, rows: Int64Array, by_row: list[list[Int32Array]]
    ) -> list[tuple[Int64Array, Int32Array]]:
        return [
            _scattered(table, rows, [tables[group] for tables in by_row])
            for group, table in enumerate(self.tables)
        ]

    # -- one step -----------------------------------------------------------------------------

    def inputs(self, plan: StepPlan) -> StepInputs:
        """Gather the step's inputs from the rows."""
        count, total = len(plan.rows), plan.num_tokens
        start = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(plan.num_new, out=start[1:])
        entry = np.repeat(np.arange(count), plan.num_new)
        offset = np.arange(total, dtype=np.int32) - start[entry]
        longest = plan.starts + plan.num_new
        order = np.argsort(-plan.starts[: plan.num_decodes]).astype(np.int32)
        # One copy to the device instead of one for each of them.
        rows, ends, token_rows, new, query_start, offsets, decode_order = upload_all(
            [
                plan.rows.astype(np.int64),
                start[1:].astype(np.int64) - 1,
                plan.rows[entry].astype(np.int64),
                plan.num_new,
                start,
                offset,
                order,
            ],
            self.device,
        )
        spans = _Spans(
            query_start=query_start,
            num_decodes=plan.num_decodes,
            query_lens=plan.num_new.tolist(),
            longest=longest.tolist(),
            decode_order=decode_order if plan.num_decodes else None,
            split_kv=needs_split_kv(plan.starts[: plan.num_decodes]),
        )
        return self._gather(rows, ends, new, spans, token_rows, offsets)

    def decode_inputs(self, rows: torch.Tensor) -> StepInputs:
        """Gather the inputs of one token for each of `rows` [n] int64, on GPUs by kernels alone:
        lengths are bounded by the longest context instead of by what the CPU knows."""
        count = len(rows)
        spans = _Spans(
            query_start=torch.arange(count + 1, dtype=torch.int32, device=self.device),
            num_decodes=count,
            query_lens=[1] * count,
            longest=[self.history.shape[1]] * count,
        )
        ends = torch.arange(count, device=self.device)
        ones = torch.ones(count, dtype=torch.int32, device=self.device)
        inputs = self._gather(rows, ends, ones, spans, rows, None)
        if kernels_run_on(self.device):
            # Not at the top: it imports triton, which the CPU does not need.
            from kvasir_engine.kernels.rank_sort import rank_sort

            # Lengths are the same in every group.
            longest_first = rank_sort(inputs.batches[0].seq_lens, descending=True)
            for batch in inputs.batches:
                batch.decode_order = longest_first
        return inputs

    def _gather(
        self,
        rows: torch.Tensor,
        ends: torch.Tensor,
        num_new: torch.Tensor,
        spans: _Spans,
        token_rows: torch.Tensor,
        offsets: torch.Tensor | None,
    ) -> StepInputs:
        """Gather inputs of entries `rows`, and of tokens by their rows and their offsets behind the
        first new one; without offsets an entry has one token."""
        most = max(spans.longest)
        blocks = -(-most // self.block_size)
        batches = []
        for table in self.tables:
            ids, positions, lens, slots = self._token_inputs(
                token_rows, self.num_computed, self.history, table, self.block_size, offsets
            )
            batches.append(
                AttentionBatch(
                    block_table=table[:, :blocks].index_select(0, rows),
                    slot_mapping=slots,
                    query_start=spans.query_start,
                    seq_lens=lens if offsets is None else lens[ends],
                    num_decodes=spans.num_decodes,
                    max_seq_len=most,
                    query_lens_cpu=spans.query_lens,
                    seq_lens_cpu=spans.longest,
                    decode_order=spans.decode_order,
                    split_kv=spans.split_kv,
                )
            )
        return StepInputs(ids, positions, batches, rows, num_new, ends)

    def advance(self, inputs: StepInputs) -> None:
        """Count the step's tokens as computed: they have their KV now."""
        self.num_computed[inputs.rows] += inputs.num_new

    def accept(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Append one sampled token to each of `rows`."""
        self.history[rows, self.num_tokens[rows].long()] = tokens
        self.num_tokens[rows] += 1


def _scattered(
    target: torch.Tensor, rows: Int64Array, values: list[Int32Array]
) -> tuple[Int64Array, Int32Array]:
    """Return indices into the flattened `target` that begin rows[i] with values[i], and these."""
    width = target.shape[1]
    at = [row * width + np.arange(len(each)) for row, each in zip(rows, values, strict=True)]
    return np.concatenate(at), np.concatenate(values)
