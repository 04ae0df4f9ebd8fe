"""ChunkedPrefill: the next tokens of a prompt, or of everything a preempted sequence recomputes."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir_engine.kv.manager import KVManager
from kvasir_engine.scheduler.counters import SchedulerCounters
from kvasir_engine.scheduler.forks import ForkPlanner
from kvasir_engine.scheduler.plan_builder import Chunk, PlanBuilder
from kvasir_engine.scheduler.row_blocks import RowAllocator
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence, SequenceState
from kvasir_engine.scheduler.waiting_queue import WaitingQueue


@dataclass(slots=True, eq=False)
class ChunkedPrefill:
    """Decide which rows compute how much of their prompt in a step."""

    kv: KVManager
    rows: RowTable
    waiting: WaitingQueue
    blocks: RowAllocator
    forks: ForkPlanner
    counters: SchedulerCounters
    longest: int
    """The most tokens of one chunk."""

    def plan_chunks(self, builder: PlanBuilder) -> None:
        """A chunk for every row that is being prefilled, earliest first, while budget is left."""
        if not builder.prefilling:
            return
        t = self.rows
        left = t.total - t.computed
        going = t.going(left)
        rows = going[(left[going] > 1) | t.special[going]]
        for sequence in sorted((t.sequence(int(row)) for row in rows), key=self.waiting.key):
            if builder.budget <= 0:
                return
            if sequence.state is SequenceState.RUNNING:
                self.plan_chunk(builder, sequence)

    def plan_chunk(self, builder: PlanBuilder, sequence: Sequence) -> None:
        """Plan as large a chunk as budget and blocks allow, or none."""
        t, row = self.rows, sequence.row
        self.blocks.free_outside_windows(sequence)
        start, total = int(t.computed[row]), int(t.total[row])
        count = min(total - start, builder.budget, self.longest)
        count = self._fit_blocks(builder, sequence, start, count)
        samples = start + count == total
        if samples and sequence.siblings and not self.forks.plan_forks(builder, sequence):
            samples = False
            count -= 1
        if count <= 0 or sequence.state is not SequenceState.RUNNING:
            return
        needed = self.kv.blocks_needed(sequence.block_tables, start + count)
        self.blocks.append(builder, sequence, needed)
        builder.chunks.append(Chunk(sequence, start, count, samples))
        builder.budget -= count
        self.counters.chunked_prefills += not samples

    def _fit_blocks(self, builder: PlanBuilder, sequence: Sequence, start: int, count: int) -> int:
        """Tokens of the chunk that find room; preempts only when nothing else would go on."""
        tables, size = sequence.block_tables, self.kv.block_size
        needed = self.kv.blocks_needed(tables, start + count)
        if self.kv.can_append(needed):
            return count
        builder.short_of_blocks = True
        fitting = (len(tables.tables[0]) + self.kv.num_available) * size - start
        if fitting > 0:
            return min(count, fitting)
        if self.blocks.others_will_release(builder) or not self.blocks.make_room(
            builder, sequence, 1
        ):
            return 0
        return min(count, (len(tables.tables[0]) + 1) * size - start)
