"""Blocks of running rows: appended, preempting the lowest priority when none are left, and made
findable.

Preemption is by recompute, latest arrival first. What a launched step names comes back only when
that step retires, so whoever made room for itself that way sits this step out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvasir_engine.kv.manager import KVManager
from kvasir_engine.scheduler.counters import SchedulerCounters
from kvasir_engine.scheduler.deferred_release import DeferredReleases
from kvasir_engine.scheduler.plan_builder import PlanBuilder
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence
from kvasir_engine.scheduler.waiting_queue import WaitingQueue
from kvasir_engine.step_plan import Int32Array


@dataclass(slots=True, eq=False)
class RowAllocator:
    """Append blocks to rows' tables, and make room for them."""

    kv: KVManager
    rows: RowTable
    waiting: WaitingQueue
    releases: DeferredReleases
    counters: SchedulerCounters

    def append(self, builder: PlanBuilder, sequence: Sequence, count: int) -> None:
        """Append `count` blocks, which are there, to the sequence's tables."""
        if not count:
            return
        tables, row = sequence.block_tables, sequence.row
        builder.append_blocks(row, tables, self.kv.append(tables, count))
        self.rows.capacity[row] = len(tables.tables[0]) * self.kv.block_size

    def free_outside_windows(self, sequence: Sequence) -> None:
        """Give back the blocks that fell out of every window; first, so that they can be had."""
        if self.kv.windowed:
            row = sequence.row
            gone = self.kv.outside_windows(sequence.block_tables, int(self.rows.computed[row]))
            self.releases.add_blocks(gone, int(self.rows.last_step[row]))

    def make_room(self, builder: PlanBuilder, sequence: Sequence, count: int) -> bool:
        """True when `count` blocks can be appended now.

        Otherwise later arrivals are preempted until enough blocks are on their way back; those
        named by a launched step come back only when it retires, so the caller sits this step out.
        """
        while not self.kv.can_append(count):
            builder.short_of_blocks = True
            if self.kv.num_available + self._coming() >= count:
                return False
            victim = max((*self._running(), sequence), key=self.waiting.key)
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def others_will_release(self, builder: PlanBuilder) -> bool:
        """Return True if waiting for blocks will end by itself: something runs and will release
        some."""
        in_flight = self.releases.retired < builder.step_id - 1
        return bool(len(builder.decodes) or builder.chunks or in_flight)

    def _coming(self) -> int:
        """Blocks that come back by themselves: of rows that leave, and of those whose last token
        is in flight."""
        t = self.rows
        last = np.flatnonzero(t.active & (t.total >= t.limit)).tolist()
        return self.releases.num_blocks(t.sequence(row) for row in last)

    def _running(self) -> Iterator[Sequence]:
        """Sequences that may be preempted."""
        t = self.rows
        for row in np.flatnonzero(t.active & (t.total < t.limit)).tolist():
            yield t.sequence(row)

    def preempt(self, sequence: Sequence) -> None:
        """Give up everything but the tokens; the one in flight, if any, is still delivered."""
        self.counters.preemptions += 1
        sequence.num_preemptions += 1
        sequence.preempted = True
        self.rows.active[sequence.row] = False
        for sibling in sequence.siblings:
            self.releases.give_back_row(sibling)
        self.releases.add(sequence)


@dataclass(slots=True, eq=False)
class BlockCommits:
    """Make rows' blocks findable in the prefix cache."""

    kv: KVManager
    rows: RowTable

    def commit_full(self, rows: Int32Array) -> None:
        """Make findable the blocks of `rows` that are full, known and written."""
        t = self.rows
        full = np.minimum(t.known[rows], t.computed[rows]) // self.kv.block_size
        is_due = full > t.committed[rows]
        if not np.count_nonzero(is_due):
            return
        due = is_due.nonzero()[0]
        for row, count in zip(rows[due].tolist(), full[due].tolist(), strict=True):
            sequence = t.sequence(row)
            self.kv.commit(sequence.block_tables, t.history[row], count * self.kv.block_size)
            t.committed[row] = count

    def keep_tail(self, sequence: Sequence) -> None:
        """Let continuations of a sequence that ends copy its last block."""
        t, row = self.rows, sequence.row
        self.kv.keep_tail(sequence.block_tables, t.history[row], int(t.computed[row]))
