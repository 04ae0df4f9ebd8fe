"""Plan the decodes of a step with array operations only; no per-row Python object is touched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvasir_engine.scheduler.plan_builder import PlanBuilder, int32
from kvasir_engine.scheduler.row_blocks import RowAllocator
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.waiting_queue import WaitingQueue
from kvasir_engine.step_plan import Int32Array


@dataclass(slots=True, eq=False)
class DecodePlanner:
    """Decide which rows decode in a step."""

    rows: RowTable
    waiting: WaitingQueue
    blocks: RowAllocator

    def plan_decodes(self, builder: PlanBuilder) -> None:
        """Add every row with exactly one token to compute, if its block is there."""
        t = self.rows
        left = t.total - t.computed
        going = t.going(left)
        plain = (left[going] == 1) & ~t.special[going]
        # Counting is several times as fast as all(), which goes through Python.
        builder.prefilling = int(np.count_nonzero(plain)) < len(plain)
        ready = (going[plain] if builder.prefilling else going).astype(np.int32)
        short = ready[t.computed[ready] >= t.capacity[ready]]
        if len(short):
            ready = self._give_blocks(builder, ready, short)
        builder.decodes = ready
        builder.budget -= len(ready)

    def _give_blocks(
        self, builder: PlanBuilder, ready: Int32Array, short: Int32Array
    ) -> Int32Array:
        """A block for each row of `short`, earliest first; returns the rows that decode."""
        t = self.rows
        without: list[int] = []
        for row in sorted(short.tolist(), key=lambda row: self.waiting.key(t.sequence(row))):
            if not t.active[row]:
                continue
            sequence = t.sequence(row)
            self.blocks.free_outside_windows(sequence)
            if self.blocks.make_room(builder, sequence, 1):
                self.blocks.append(builder, sequence, 1)
            else:
                without.append(row)
        keep = t.active[ready]
        keep &= ~np.isin(ready, int32(without))
        return ready[keep]
