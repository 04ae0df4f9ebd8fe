"""Beam groups enter their next step: rows rewritten from their parents', by `BeamMove`s.

A group takes part in a step with all its beams, then sits out until their candidates are on the
CPU; only then are its rows given their next tokens.
"""

from __future__ import annotations

import time

import numpy as np

from kvasir_engine.kv.block_table import BlockTables
from kvasir_engine.kv.groups import NULL_BLOCK
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import SampleDelta
from kvasir_engine.scheduler.beams.beam_groups import BeamGroup
from kvasir_engine.scheduler.beams.beam_search import Beam
from kvasir_engine.scheduler.plan_builder import PlanBuilder, int32
from kvasir_engine.scheduler.row_blocks import RowAllocator
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence, SequenceState
from kvasir_engine.scheduler.waiting_queue import WaitingQueue
from kvasir_engine.step_plan import BeamMove, Float32Array, Int32Array


class BeamMoves:
    """The groups whose candidates are complete, and their way into the next plan."""

    def __init__(
        self, kv: KVManager, rows: RowTable, waiting: WaitingQueue, blocks: RowAllocator
    ) -> None:
        self._kv = kv
        self._rows = rows
        self._waiting = waiting
        self._blocks = blocks
        self.ready: list[BeamGroup] = []
        """Groups to be moved into the next plan that has room."""

    def offer(
        self, member: Sequence, ids: Int32Array, logprobs: Float32Array
    ) -> list[tuple[int, SampleDelta]] | None:
        """Candidates of one beam have arrived; the results when that ends the search."""
        group = member.beam_group
        if group is None:
            raise AssertionError(f"sequence {member.handle} is in no beam group.")
        group.offered[group.members.index(member)] = (ids, logprobs)
        if not group.lead.times.first_token:
            group.lead.times.first_token = time.monotonic()
        if not group.complete:
            return None
        offers = [group.offered[i] for i in range(len(group.search.running))]
        width = group.search.candidates
        group.search.advance([o[0][:width] for o in offers], [o[1][:width] for o in offers])
        group.offered.clear()
        if group.search.done:
            return self._results(group)
        self.ready.append(group)
        return None

    def drop_group(self, group: BeamGroup) -> None:
        """The group has ended."""
        if group in self.ready:
            self.ready.remove(group)

    def plan_moves(self, builder: PlanBuilder) -> None:
        """Move the groups whose candidates have all arrived into this step."""
        waiting: list[BeamGroup] = []
        for group in sorted(self.ready, key=lambda group: self._waiting.key(group.lead)):
            beams = len(group.search.running)
            for member in group.members:
                if member.tables is not None:
                    self._blocks.free_outside_windows(member)
            if builder.budget < beams:
                waiting.append(group)
            elif self._blocks.make_room(builder, group.lead, beams):
                self._move(builder, group)
                builder.beam_candidates = max(builder.beam_candidates, group.search.candidates)
            elif group.lead.state is SequenceState.RUNNING:  # not preempted
                waiting.append(group)
        self.ready = waiting

    def _move(self, builder: PlanBuilder, group: BeamGroup) -> None:
        """Give every beam its token and its blocks; takes at most one block a beam."""
        old = [member.tables for member in group.members]
        prompt = group.lead.num_prompt
        taken: set[int] = set()
        moved: list[BlockTables] = []
        for beam in group.search.running:
            parent = group.members[beam.parent].block_tables
            position = prompt + len(beam.tokens) - 1
            first = beam.parent not in taken
            moved.append(self._inherit(builder, parent, position, first))
            taken.add(beam.parent)
        sources = [group.members[beam.parent].row for beam in group.search.running]
        prompt_tokens = self._rows.history[group.lead.row, :prompt].copy()
        for tables in old:
            if tables is not None:
                self._kv.release([tables.held(g) for g in range(len(self._kv.groups))])
        for member in group.members:
            member.tables = None
        for i, beam in enumerate(group.search.running):
            self._place(builder, group.members[i], beam, prompt_tokens, sources[i], moved[i])

    def _inherit(
        self, builder: PlanBuilder, parent: BlockTables, position: int, first: bool
    ) -> BlockTables:
        """A child's tables with room for `position`: full blocks shared, the last one its own.

        The first child writes on in its parent's last block; the others get copies of it.
        """
        size = self._kv.block_size
        full = position // size
        tables = BlockTables([[] for _ in parent.tables], parent.root, list(parent.hashes))
        tables.windows_start = list(parent.windows_start)
        partial = position % size != 0
        keep = full + 1 if partial and first else full
        for group, table in enumerate(parent.tables):
            shared = table[:keep]
            self._kv.pools[group].share(block for block in shared if block != NULL_BLOCK)
            tables.tables[group] = list(shared)
        if keep == full:
            fresh = self._kv.append(tables, 1)
            if partial:
                sources = [table[full] for table in parent.tables]
                builder.add_copies([(s, new[0]) for s, new in zip(sources, fresh, strict=True)])
        return tables

    def _place(
        self,
        builder: PlanBuilder,
        member: Sequence,
        beam: Beam,
        prompt: Int32Array,
        source: int,
        tables: BlockTables,
    ) -> None:
        t, row = self._rows, member.row
        tokens = np.concatenate([prompt, int32(list(beam.tokens))])
        member.tables = tables
        t.history[row, : len(tokens)] = tokens
        t.known[row] = t.total[row] = len(tokens)
        t.computed[row] = len(tokens) - 1
        t.capacity[row] = len(tables.tables[0]) * self._kv.block_size
        t.committed[row] = len(tables.hashes)
        builder.moves.append(
            BeamMove(
                src=source,
                dst=row,
                token=beam.tokens[-1],
                num_tokens=len(tokens),
                block_tables=[int32(table) for table in tables.tables],
            )
        )
        builder.beam_rows.append(row)
        builder.budget -= 1

    @staticmethod
    def _results(group: BeamGroup) -> list[tuple[int, SampleDelta]]:
        lead = group.lead
        deltas = []
        for i, beam in enumerate(group.search.finished):
            delta = SampleDelta(
                lead.request.handle + i,
                list(beam.tokens),
                finish_reason=beam.reason,
                cumulative_logprob=beam.score,
            )
            if i == 0:
                delta.num_cached_tokens = lead.num_cached
                delta.seed = lead.sampling.seed
            deltas.append((lead.request.client, delta))
        return deltas
