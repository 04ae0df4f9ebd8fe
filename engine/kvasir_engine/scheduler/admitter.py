"""Admit waiting sequences in order of service, when rows and blocks suffice."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kvasir_engine.kv.manager import KVManager
from kvasir_engine.scheduler.chunked_prefill import ChunkedPrefill
from kvasir_engine.scheduler.counters import SchedulerCounters
from kvasir_engine.scheduler.deferred_release import DeferredReleases
from kvasir_engine.scheduler.plan_builder import PlanBuilder, int32
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence, SequenceState
from kvasir_engine.scheduler.step_limit import StepLimit
from kvasir_engine.scheduler.waiting_queue import WaitingQueue
from kvasir_engine.step_plan import RowInit

WATERMARK = 0.01
"""Share of the blocks that starting leaves free while anything runs, so that a new prompt does
not cause a preemption at once."""

RETRY_STEPS = 16
"""Steps after which a sequence that found too few blocks is tried again though no more are free:
its prefix may have been computed by others since. Looking it up costs milliseconds when long."""


@dataclass(slots=True, eq=False)
class Admitter:
    """Give sequences their rows, their cached prefix and a first chunk."""

    kv: KVManager
    rows: RowTable
    waiting: WaitingQueue
    prefill: ChunkedPrefill
    releases: DeferredReleases
    counters: SchedulerCounters
    limit: StepLimit
    _blocked: tuple[Sequence, list[int], int] | None = None
    """Sequence that found too few blocks, how many must be available, and when to look again
    anyway."""

    def admit_waiting(self, builder: PlanBuilder) -> None:
        """Start sequences until one must wait; it is not overtaken."""
        while builder.budget > 0 and not builder.short_of_blocks:
            sequence = self.waiting.peek()
            if sequence is None or self.num_startable < sequence.rows_needed:
                return
            if not self._admit(builder, sequence):
                return

    @property
    def num_startable(self) -> int:
        """Rows that may be taken now; a lowered limit keeps nobody from running alone."""
        free = self.rows.num_free
        taken = self.rows.num_rows - free
        return min(free, self.limit.rows - taken) if taken else free

    def blocks_to_admit(self, num_tokens: int, samples: int) -> list[int]:
        """Blocks by group to prefill `num_tokens` and sample; each further sample adds one."""
        blocks = self.kv.max_blocks_held(num_tokens + 1, self.prefill.longest)
        return [count + samples - 1 for count in blocks]

    def _admit(self, builder: PlanBuilder, sequence: Sequence) -> bool:
        """False if the sequence must wait."""
        if self._is_blocked(builder, sequence):
            return False
        request = sequence.request
        tables = self.kv.new_tables(request.cache_salt, request.block_hashes, lora=request.lora)
        caching = sequence.request.params.prompt_logprobs is None
        tokens = sequence.tokens if caching else sequence.tokens[:1]
        hit = self.kv.find_prefix(tokens, tables.root, tables.known)
        wanted = self.blocks_to_admit(len(sequence.tokens), 1 + len(sequence.siblings))
        needed = self._available_to_fit(wanted, hit.tables)
        if not self._are_available(needed):
            self._blocked = (sequence, needed, builder.step_id + RETRY_STEPS)
            return False
        tail = None
        # What is copied counts as available, but must outlive the step that copies it.
        if not sequence.siblings and self._are_available([count + 1 for count in needed]):
            tail = self.kv.find_tail(tokens, tables.root, hit)
        self.waiting.pop()
        self.kv.acquire_prefix(tables, hit)
        sequence.tables = tables
        num_cached = hit.num_tokens
        if tail is not None:
            pairs = self.kv.copy_tail(tables, tail)
            builder.add_copies(pairs)
            self.releases.add_blocks([[source] for source, _ in pairs], builder.step_id)
            num_cached = len(tokens) - 1
        self._give_row(builder, sequence, num_cached)
        self.prefill.plan_chunk(builder, sequence)
        return True

    def _available_to_fit(self, wanted: list[int], cached: list[list[int]]) -> list[int]:
        """Return how many blocks each group must be able to hand out, so that `wanted` of them,
        `cached` among them, fit beside what runs."""
        needed = []
        running = self.rows.active.any()
        for pool, blocks, table in zip(self.kv.pools, wanted, cached, strict=True):
            margin = int(WATERMARK * pool.capacity) if running else 0
            # A hit that nobody holds counts as available, but will be taken.
            needed.append(blocks - pool.num_held(table) + margin)
        return needed

    def _are_available(self, counts: list[int]) -> bool:
        return all(p.num_available >= n for p, n in zip(self.kv.pools, counts, strict=True))

    def _is_blocked(self, builder: PlanBuilder, sequence: Sequence) -> bool:
        """Return whether the head of the queue still lacks blocks, so that its prefix look-up can
        be skipped."""
        if self._blocked is None or not self.rows.active.any():
            return False
        who, needed, retry_step = self._blocked
        return who is sequence and builder.step_id < retry_step and not self._are_available(needed)

    def _give_row(self, builder: PlanBuilder, sequence: Sequence, num_cached: int) -> None:
        """The sequence, and its siblings, own rows from now on."""
        t = self.rows
        row = t.acquire(sequence)
        sequence.state = SequenceState.RUNNING
        sequence.times.started = sequence.times.started or time.monotonic()
        for sibling in sequence.siblings:
            t.acquire(sibling)
            sibling.state = SequenceState.RUNNING
        t.computed[row] = num_cached
        t.committed[row] = num_cached // self.kv.block_size
        t.capacity[row] = len(sequence.block_tables.tables[0]) * self.kv.block_size
        t.active[row] = True
        t.special[row] = sequence.is_special
        if sequence.num_cached is None:
            self._count_hit(sequence, num_cached)
        builder.inits.append(
            RowInit(
                row=row,
                token_ids=sequence.tokens,
                num_prompt=sequence.num_prompt,
                num_computed=num_cached,
                block_tables=[int32(table) for table in sequence.block_tables.tables],
                sampling=sequence.sampling,
            )
        )

    def _count_hit(self, sequence: Sequence, num_cached: int) -> None:
        sequence.num_cached = min(num_cached, sequence.num_prompt)
        if self.kv.caching and sequence.request.params.prompt_logprobs is None:
            self.counters.prefix_queries += len(sequence.tokens)
        self.counters.prefix_hits += num_cached
