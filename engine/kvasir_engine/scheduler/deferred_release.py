"""Release rows and blocks once the last launched step that names them has retired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvasir_engine.kv.manager import KVManager
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence, SequenceState


@dataclass(slots=True, eq=False)
class DeferredReleases:
    """Rows and blocks on their way back."""

    kv: KVManager
    rows: RowTable
    requeue: Callable[[Sequence], None]
    """Called with each preempted sequence once it owns nothing any more."""
    retired: int = -1
    """The last step whose results are on the CPU."""
    _leaving: list[Sequence] = field(default_factory=list)
    _blocks: list[tuple[int, list[list[int]]]] = field(default_factory=list)

    @property
    def pending(self) -> bool:
        """True while anything is on its way back."""
        return bool(self._leaving or self._blocks)

    def num_blocks(self, ending: Iterable[Sequence]) -> int:
        """Blocks that every group will surely have got back once all launched steps retired, if
        the sequences `ending` then leave too."""
        coming = []
        tables = [s.tables for s in (*self._leaving, *ending) if s.tables]
        for group, pool in enumerate(self.kv.pools):
            shares = Counter(b for table in tables for b in table.held(group))
            shares.update(b for _, blocks in self._blocks for b in blocks[group])
            coming.append(sum(pool.references(b) == count for b, count in shares.items()))
        return min(coming)

    def add(self, sequence: Sequence) -> None:
        """A sequence leaves its row; one that does already, goes on doing so."""
        if sequence.state is SequenceState.LEAVING:
            return
        sequence.state = SequenceState.LEAVING
        self._leaving.append(sequence)
        self._settle()

    def add_blocks(self, blocks: list[list[int]], last_step: int) -> None:
        """Blocks (by group) that no step after `last_step` reads."""
        if any(blocks):
            self._blocks.append((last_step, blocks))
            self._settle()

    def give_back_row(self, sequence: Sequence) -> None:
        """An unforked sibling's row, which no step ever named."""
        sequence.tokens = self.rows.release(sequence.row)
        sequence.state = SequenceState.WAITING

    def retire(self, step_id: int) -> None:
        """Step `step_id` and all before it have retired."""
        self.retired = step_id
        self._settle()

    def _settle(self) -> None:
        staying: list[Sequence] = []
        for sequence in self._leaving:
            if self.rows.last_step[sequence.row] > self.retired:
                staying.append(sequence)
            else:
                self._free(sequence)
        self._leaving = staying
        still: list[tuple[int, list[list[int]]]] = []
        for last_step, blocks in self._blocks:
            if last_step > self.retired:
                still.append((last_step, blocks))
            else:
                self.kv.release(blocks)
        self._blocks = still

    def _free(self, sequence: Sequence) -> None:
        tables = sequence.tables
        if tables is not None:
            self.kv.release([tables.held(group) for group in range(len(tables.tables))])
        sequence.tables = None
        sequence.tokens = self.rows.release(sequence.row)
        if sequence.preempted:
            sequence.preempted = False
            sequence.state = SequenceState.WAITING
            self.requeue(sequence)
        else:
            sequence.state = SequenceState.GONE
