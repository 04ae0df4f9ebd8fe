"""Collect one step while the scheduler decides, then become a StepPlan."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvasir_engine.kv.block_table import BlockTables
from kvasir_engine.scheduler.sequence import Sequence
from kvasir_engine.step_plan import (
    BlockAppends,
    Int32Array,
    PromptLogprobsPlan,
    RowFork,
    RowInit,
    StepPlan,
)


def int32(values: list[int]) -> Int32Array:
    """`values` as an array."""
    return np.array(values, dtype=np.int32)


@dataclass(slots=True)
class Chunk:
    """Tokens start .. start + count - 1 of a sequence; `samples` if they end what is known."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass(slots=True)
class ForkCopy:
    """The partial block a sibling takes over from its lead: (source, destination) by group."""

    lead: Sequence
    sibling: Sequence
    pairs: list[tuple[int, int]]


@dataclass(slots=True)
class PlanBuilder:
    """Decisions made so far for step `step_id`."""

    step_id: int
    budget: int
    """Tokens that may still be added."""
    decodes: Int32Array = field(default_factory=lambda: int32([]))
    prefilling: bool = False
    """True if there are rows that want more than one plain token."""
    chunks: list[Chunk] = field(default_factory=list)
    inits: list[RowInit] = field(default_factory=list)
    forks: list[RowFork] = field(default_factory=list)
    copies: list[list[tuple[int, int]]] = field(default_factory=list)
    """Pairs (source, destination) by KV group."""
    fork_copies: list[ForkCopy] = field(default_factory=list)
    """Copies that this plan's forks leave to the next plan."""
    short_of_blocks: bool = False
    """Something that runs found too few blocks: nothing new is admitted, or it might starve."""
    _rows: list[int] = field(default_factory=list)
    _index: list[int] = field(default_factory=list)
    _blocks: list[tuple[int, ...]] = field(default_factory=list)

    def append_blocks(self, row: int, tables: BlockTables, fresh: list[list[int]]) -> None:
        """Blocks `fresh` (by group) were appended at the end of the row's tables."""
        count = len(fresh[0])
        first = len(tables.tables[0]) - count
        self._rows.extend([row] * count)
        self._index.extend(range(first, first + count))
        self._blocks.extend(zip(*fresh, strict=True))

    def add_copies(self, pairs: list[tuple[int, int]]) -> None:
        """Copy one block of each KV group before the forward."""
        if not self.copies:
            self.copies = [[] for _ in pairs]
        for group, pair in zip(self.copies, pairs, strict=True):
            group.append(pair)

    def build(self, computed: Int32Array, logprobs: Int32Array | None) -> StepPlan | None:
        """The plan, or None when no token would be computed.

        `computed` and `logprobs` are the row table's, before this step; no `logprobs` if no row
        wants any.
        """
        ones = rows = self.decodes
        if self.chunks:
            ones = rows = self._join_decodes()
        if self.chunks:
            rows = np.concatenate([ones, int32([chunk.sequence.row for chunk in self.chunks])])
        if not len(rows):
            return None
        num_new = np.ones(len(rows), dtype=np.int32)
        if self.chunks:
            num_new[len(ones) :] = [chunk.count for chunk in self.chunks]
        plan = StepPlan(
            step_id=self.step_id,
            rows=rows,
            num_new=num_new,
            starts=computed[rows],
            num_decodes=len(ones),
            sample_entries=np.arange(len(ones), dtype=np.int32),
            sample_rows=ones,
            inits=self.inits,
            forks=self.forks,
            appends=self._appends(),
            copies=[np.array(pairs, dtype=np.int32).reshape(-1, 2) for pairs in self.copies],
        )
        if self.chunks:
            self._add_chunk_samples(plan)
        if len(plan.sample_rows):
            plan.top_logprobs = -1 if logprobs is None else int(logprobs[plan.sample_rows].max())
        return plan

    def _join_decodes(self) -> Int32Array:
        """Rows that compute one token and sample from it, prompts' last tokens among them."""
        forked = {fork.src for fork in self.forks}
        chunks, singles = [], []
        for chunk in self.chunks:
            sequence = chunk.sequence
            plain = sequence.request.params.prompt_logprobs is None and sequence.row not in forked
            if chunk.count == 1 and chunk.samples and plain:
                singles.append(sequence.row)
            else:
                chunks.append(chunk)
        self.chunks = chunks
        return np.concatenate([self.decodes, int32(singles)]) if singles else self.decodes

    def _appends(self) -> list[BlockAppends]:
        if not self._rows:
            return []
        rows, index = int32(self._rows), int32(self._index)
        return [
            BlockAppends(rows, index, int32(list(blocks)))
            for blocks in zip(*self._blocks, strict=True)
        ]

    def _add_chunk_samples(self, plan: StepPlan) -> None:
        """Sampling and prompt log-probabilities of the chunks; forks sample beside their lead."""
        forked: dict[int, list[int]] = {}
        for fork in self.forks:
            forked.setdefault(fork.src, []).append(fork.dst)
        entries: list[int] = []
        rows: list[int] = []
        for entry, chunk in enumerate(self.chunks, start=plan.num_decodes):
            row = chunk.sequence.row
            if chunk.samples:
                owners = [row, *forked.get(row, [])]
                entries.extend([entry] * len(owners))
                rows.extend(owners)
            self._add_prompt_logprobs(plan, chunk, entry)
        plan.sample_entries = np.concatenate([plan.sample_entries, int32(entries)])
        plan.sample_rows = np.concatenate([plan.sample_rows, int32(rows)])

    @staticmethod
    def _add_prompt_logprobs(plan: StepPlan, chunk: Chunk, entry: int) -> None:
        sequence = chunk.sequence
        top = sequence.request.params.prompt_logprobs
        if top is None:
            return
        first = max(chunk.start, sequence.reported)
        last = min(chunk.start + chunk.count, sequence.num_prompt - 1)
        if first < last:
            sequence.reported = last
            plan.prompt_logprobs.append(PromptLogprobsPlan(entry, first, last, top))
