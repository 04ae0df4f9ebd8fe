"""n > 1: at its prompt's last token a lead forks its siblings off, each with a row of its own.

Full blocks are shared. The partial block after them is copied by the plan after the one that
forked, since the forking step still writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvasir_engine.kv.groups import NULL_BLOCK
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.scheduler.counters import SchedulerCounters
from kvasir_engine.scheduler.plan_builder import ForkCopy, PlanBuilder, int32
from kvasir_engine.scheduler.row_blocks import RowAllocator
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence, SequenceState
from kvasir_engine.step_plan import RowFork


@dataclass(slots=True, eq=False)
class ForkPlanner:
    """Fork siblings off their leads and see their copies made."""

    kv: KVManager
    rows: RowTable
    blocks: RowAllocator
    counters: SchedulerCounters
    _due: list[ForkCopy] = field(default_factory=list)
    """Copies the next plan makes."""

    def plan_forks(self, builder: PlanBuilder, lead: Sequence) -> bool:
        """Fork the siblings off at the prompt's last token; False if their blocks are not there."""
        total = int(self.rows.total[lead.row])
        lead_needs = self.kv.blocks_needed(lead.block_tables, total)
        partial = 1 if total % self.kv.block_size else 0
        needed = lead_needs + partial * len(lead.siblings)
        if not self.kv.can_append(needed):
            builder.short_of_blocks = True
            waits = self.blocks.others_will_release(builder)
            if waits or not self.blocks.make_room(builder, lead, needed):
                return False
        self.blocks.append(builder, lead, lead_needs)
        for sibling in list(lead.siblings):
            self._fork(builder, lead, sibling, total)
            self.part(lead, sibling)
            self.counters.forks += 1
        return True

    def part(self, lead: Sequence, sibling: Sequence) -> None:
        """`sibling` is the lead's no more."""
        lead.siblings.remove(sibling)
        sibling.lead = None
        if lead.row >= 0:
            self.rows.special[lead.row] = lead.is_special

    def plan_copies(self, builder: PlanBuilder) -> None:
        """Copies for siblings that go on computing; the others' blocks may be handed on already."""
        t = self.rows
        for copy in self._due:
            row = copy.sibling.row
            if copy.sibling.state is SequenceState.RUNNING and t.total[row] < t.limit[row]:
                builder.add_copies(copy.pairs)

    def forget_copies(self) -> None:
        """Make none of the copies that are due: their siblings compute their tokens anew."""
        self._due.clear()

    def planned(self, builder: PlanBuilder) -> None:
        """The step became a plan: its copies are made, those of its own forks are due next."""
        for copy in self._due:
            # The step reads the lead's block and writes the sibling's, whether it has them as rows
            # or not: a sibling may wait for its bias.
            for sequence in (copy.lead, copy.sibling):
                if sequence.row >= 0:
                    self.rows.last_step[sequence.row] = builder.step_id
        self._due = builder.fork_copies

    def _fork(self, builder: PlanBuilder, lead: Sequence, sibling: Sequence, total: int) -> None:
        t, row = self.rows, sibling.row
        full = total // self.kv.block_size
        asked, known = lead.request, lead.block_tables.known
        tables = self.kv.new_tables(asked.cache_salt, known, lora=asked.lora)
        for group, table in enumerate(lead.block_tables.tables):
            shared = table[:full]
            self.kv.pools[group].share(block for block in shared if block != NULL_BLOCK)
            tables.tables[group] = list(shared)
        tables.hashes = list(lead.block_tables.hashes)
        tables.windows_start = list(lead.block_tables.windows_start)
        sibling.tables = tables
        if total % self.kv.block_size:
            fresh = self.kv.append(tables, 1)
            sources = [table[full] for table in lead.block_tables.tables]
            pairs = [(source, new[0]) for source, new in zip(sources, fresh, strict=True)]
            builder.fork_copies.append(ForkCopy(lead, sibling, pairs))
        t.computed[row] = t.total[row] = t.known[row] = total
        t.capacity[row] = len(tables.tables[0]) * self.kv.block_size
        t.committed[row] = len(tables.hashes)
        t.active[row] = True
        sibling.num_cached = lead.num_cached
        sibling.reported = sibling.num_prompt  # the lead reports the prompt they share
        block_tables = [int32(table) for table in tables.tables]
        builder.forks.append(RowFork(lead.row, row, block_tables, sibling.sampling))
