"""One scheduler, no phases: a step is {row: tokens} under one budget.

Each step takes, in this order: one token of every row that is ready to decode, a chunk of every
prompt that is being prefilled, then new sequences from the queue. Rows that find no block make
the latest arrival give up its own (preemption by recompute).

Everything here is an upper bound while steps are in flight: a row counts the token it will have
been given by the steps already launched (`RowTable.total`), and what it owns is released only
after the last launched step that names it has retired.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvasir_engine.kv.groups import NULL_BLOCK
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import EngineRequest
from kvasir_engine.runner.plan import Int32Array, RowFork, RowInit, StepPlan
from kvasir_engine.scheduler.beam_groups import BeamGroup, BeamGroups, make_group
from kvasir_engine.scheduler.plan_builder import Chunk, ForkCopy, PlanBuilder, int32
from kvasir_engine.scheduler.releases import Releases
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence, State, make_sequences
from kvasir_engine.scheduler.waiting_queue import WaitingQueue
from kvasir_engine.settings import SchedulerSettings

WATERMARK = 0.01
"""Share of the blocks that admission leaves free while anything runs, so that a new prompt does
not cause a preemption at once."""
ENDED_KEPT = 4096

LOOK_AGAIN_AFTER = 16
"""Steps after which a sequence that found too few blocks is tried again though no more are free:
its prefix may have been computed by others since. Looking it up costs milliseconds when long."""


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start; metrics and tests read them."""

    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Of these, tokens found."""
    steps: int = 0
    computed_tokens: int = 0
    chunked_prefills: int = 0
    """Chunks that did not end their prompt."""
    forks: int = 0
    max_queued: int = 0


class Scheduler:
    """Decides each step. `results.py` takes in what a step produced."""

    def __init__(
        self, settings: SchedulerSettings, kv: KVManager, *, max_model_len: int, seed: int = 0
    ) -> None:
        self.settings = settings
        self.kv = kv
        self.max_model_len = max_model_len
        self.rows = RowTable(settings.max_num_seqs, max_model_len + 1)
        self.waiting = WaitingQueue(settings.policy)
        self.counters = SchedulerCounters()
        self.releases = Releases(kv, self.rows, self.waiting.push)
        self.beams = BeamGroups(kv, self.rows)
        self.by_handle: dict[int, Sequence] = {}
        self._windowed = any(spec.window is not None for spec in kv.groups)
        self._copies: list[ForkCopy] = []
        """For the plan after the one that forked."""
        self._blocked: tuple[Sequence, list[int], int] | None = None
        """Who found too few blocks, how many must be available, and when to look again anyway."""
        self._seeds = np.random.Generator(np.random.Philox(seed))
        self._ended: deque[Sequence] = deque(maxlen=ENDED_KEPT)
        self._next_order = 0
        self._next_step = 0

    # -- requests ---------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request that admission.check has let through."""
        params = request.params
        seed = int(self._seeds.integers(0, 2**63 - 1)) if params.seed is None else params.seed
        lead = make_sequences(
            request, order=self._next_order, seed=seed, max_model_len=self.max_model_len
        )
        lead.times.queued = time.monotonic()
        self._next_order += params.n
        if params.use_beam_search:
            make_group(lead)
            self.by_handle.update(dict.fromkeys(_handles(lead), lead))
        for sequence in (lead, *lead.siblings):
            self.by_handle[sequence.handle] = sequence
        self.waiting.push(lead)
        self.counters.max_queued = max(self.counters.max_queued, len(self.waiting))

    def end(self, handle: int) -> None:
        """Stop a sample (abort, or a stop string was found); unknown handles are ignored.

        Ending the first of n samples before any has a token ends all n.
        """
        sequence = self.by_handle.get(handle)
        if sequence is not None:
            self.retire(sequence)

    def retire(self, sequence: Sequence) -> None:
        """The sequence will sample nothing more; what it owns returns when its last step has."""
        if sequence.beam_group is not None:
            self._retire_group(sequence.beam_group)
            return
        self.by_handle.pop(sequence.handle, None)
        for sibling in list(sequence.siblings):
            self.retire(sibling)
        self._give_up(sequence)
        if sequence.lead is not None:
            self._part(sequence.lead, sequence)

    def _retire_group(self, group: BeamGroup) -> None:
        for handle in _handles(group.lead):
            self.by_handle.pop(handle, None)
        self.beams.forget(group)
        self._give_up(group.lead)
        for member in group.members[1:]:
            if member.row >= 0:
                self._give_up(member)

    def take_ended(self) -> list[Sequence]:
        """Sequences that ended after a first token since the last call, for the metrics."""
        ended, self._ended = list(self._ended), deque(maxlen=ENDED_KEPT)
        return ended

    def _give_up(self, sequence: Sequence) -> None:
        """Leave the queue or the row for good."""
        if sequence.times.first_token:
            sequence.times.ended = time.monotonic()
            self._ended.append(sequence)
        if sequence.state is State.WAITING:
            if sequence.lead is None:
                self.waiting.drop(sequence)
            sequence.state = State.GONE
        elif sequence.state is not State.GONE:
            sequence.preempted = False
            self.rows.active[sequence.row] = False
            self.rows.finished[sequence.row] = True
            self._leave(sequence)

    def _part(self, lead: Sequence, sibling: Sequence) -> None:
        """`sibling` is the lead's no more."""
        lead.siblings.remove(sibling)
        sibling.lead = None
        if lead.row >= 0:
            self.rows.special[lead.row] = self._is_special(lead)

    @property
    def num_running(self) -> int:
        """Sequences that own a row and may still produce tokens."""
        return int((self.rows.owned & ~self.rows.finished).sum())

    @property
    def has_work(self) -> bool:
        """True while a further step may have something to do."""
        return bool(
            len(self.waiting) or self.rows.active.any() or self.beams.ready or self.releases.pending
        )

    def prefill_backlog(self) -> int:
        """Tokens of admitted and waiting sequences whose KV is still to be computed."""
        rows = self.rows
        left = (rows.total - rows.computed - 1)[rows.active]
        return self.waiting.num_tokens + int(np.maximum(left, 0).sum())

    # -- one step ---------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed now."""
        builder = PlanBuilder(self._next_step, self.settings.max_num_batched_tokens)
        copies, self._copies = self._copies, []
        self._plan_decodes(builder)
        self._plan_beams(builder)
        self._plan_chunks(builder)
        self._admit(builder)
        self._plan_copies(builder, copies)
        plan = builder.build(self.rows.computed, self.rows.logprobs)
        if plan is None:
            self._copies = copies
        else:
            self._advance(plan)
            for copy in copies:
                if copy.lead.row >= 0:
                    self.rows.last_step[copy.lead.row] = plan.step_id
        return plan

    def launched(self, plan: StepPlan) -> None:
        """`plan` is on the device: blocks it fills whose tokens are known become findable."""
        self.commit_full_blocks(plan.rows)

    def commit_full_blocks(self, rows: Int32Array) -> None:
        """Make findable the blocks of `rows` that are full, known and written."""
        t = self.rows
        full = np.minimum(t.known[rows], t.computed[rows]) // self.kv.block_size
        for row, count in zip(
            rows[full > t.committed[rows]].tolist(),
            full[full > t.committed[rows]].tolist(),
            strict=True,
        ):
            sequence = t.sequence(row)
            self.kv.commit(sequence.block_tables, t.history[row], count * self.kv.block_size)
            t.committed[row] = count

    # -- decodes ----------------------------------------------------------------------------

    def _plan_decodes(self, builder: PlanBuilder) -> None:
        t = self.rows
        ready = np.flatnonzero(
            t.active & ~t.special & (t.total - t.computed == 1) & (t.total < t.limit)
        ).astype(np.int32)
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
        for row in sorted(short.tolist(), key=lambda row: self._rank(t.sequence(row))):
            if not t.active[row]:
                continue
            sequence = t.sequence(row)
            self._leave_windows(sequence)
            if self._make_room(builder, sequence, 1):
                self._append(builder, sequence, 1)
            else:
                without.append(row)
        keep = t.active[ready]
        keep &= ~np.isin(ready, int32(without))
        return ready[keep]

    def _make_room(self, builder: PlanBuilder, sequence: Sequence, count: int) -> bool:
        """True when `count` blocks can be appended now.

        Otherwise later arrivals are preempted until enough blocks are on their way back; those
        named by a launched step come back only when it retires, so the caller sits this step out.
        """
        while not self.kv.can_append(count):
            builder.short_of_blocks = True
            if self.kv.num_available + self.releases.num_blocks >= count:
                return False
            victim = max((*self._running(), sequence), key=self._rank)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        return self.waiting.key(sequence)

    def _running(self) -> Iterator[Sequence]:
        """Sequences that may be preempted; beam groups give way only by themselves."""
        for row in np.flatnonzero(self.rows.active).tolist():
            sequence = self.rows.sequence(row)
            if sequence.beam_group is None:
                yield sequence

    def _preempt(self, sequence: Sequence) -> None:
        """Give up everything but the tokens; the one in flight, if any, is still delivered."""
        self.counters.preemptions += 1
        sequence.num_preemptions += 1
        if sequence.beam_group is not None:
            self._preempt_group(sequence.beam_group)
            return
        sequence.preempted = True
        self.rows.active[sequence.row] = False
        for sibling in sequence.siblings:
            self.releases.give_back_row(sibling)
        self._leave(sequence)

    def _preempt_group(self, group: BeamGroup) -> None:
        """All of a group's rows and blocks; nothing of it is in flight while it asks for room."""
        self.beams.forget(group)
        for member in group.members:
            self._leave(member)
        group.lead.state = State.WAITING
        self.waiting.push(group.lead)

    def _leave(self, sequence: Sequence) -> None:
        if sequence.state is State.LEAVING:
            return
        sequence.state = State.LEAVING
        self.releases.add(sequence)

    # -- beams --------------------------------------------------------------------------------

    def _plan_beams(self, builder: PlanBuilder) -> None:
        """Move the groups whose candidates have all arrived into this step."""
        for group in sorted(self.beams.ready, key=lambda group: self._rank(group.lead)):
            beams = len(group.search.running)
            if builder.budget < beams or not self._make_room(builder, group.lead, beams):
                continue
            self.beams.ready.remove(group)
            self._hold_copies(builder)
            self.beams.move(builder, group)
            builder.beam_candidates = max(builder.beam_candidates, group.search.candidates)

    def _start_group(self, builder: PlanBuilder, group: BeamGroup) -> bool:
        """Rows for all beams, and every block of what the running ones must (re)compute."""
        size = self.kv.block_size
        length = len(group.lead.request.prompt_token_ids) + len(group.search.running[0].tokens)
        blocks = len(group.search.running) * -(-(length + 1) // size)
        none_cached: list[list[int]] = [[] for _ in self.kv.groups]
        needed = self._available_to_fit([blocks] * len(self.kv.groups), none_cached)
        if not self._are_available(needed):
            return False
        self.waiting.pop()
        for member, beam in zip(group.members, group.search.running, strict=False):
            tokens = [*member.request.prompt_token_ids, *beam.tokens]
            member.tokens = int32(tokens)
            tables = self.kv.new_tables(member.request.cache_salt)
            hit = self.kv.find_prefix(member.tokens, tables.root, member.request.block_hashes)
            self.kv.take(tables, hit)
            member.tables = tables
            self._enter(builder, member, hit.num_tokens)
            self._append(builder, member, self.kv.blocks_needed(tables, len(tokens)))
        for member in group.members[len(group.search.running) :]:
            self.rows.acquire(member)
            member.state = State.RUNNING
        for member in group.members[: len(group.search.running)]:
            if builder.budget > 0:
                self._plan_chunk(builder, member)
        return True

    # -- chunks of prompts --------------------------------------------------------------------

    def _plan_chunks(self, builder: PlanBuilder) -> None:
        t = self.rows
        left = t.total - t.computed
        rows = np.flatnonzero(
            t.active & (t.total < t.limit) & ((left > 1) | (t.special & (left > 0)))
        )
        for sequence in sorted((t.sequence(int(row)) for row in rows), key=self._rank):
            if builder.budget <= 0:
                return
            if sequence.state is State.RUNNING:
                self._plan_chunk(builder, sequence)

    def _plan_chunk(self, builder: PlanBuilder, sequence: Sequence) -> bool:
        """As large a chunk as budget and blocks allow; False if there is none."""
        t, row = self.rows, sequence.row
        self._leave_windows(sequence)
        start, total = int(t.computed[row]), int(t.total[row])
        count = min(total - start, builder.budget, self._longest_chunk())
        count = self._fit_blocks(builder, sequence, start, count)
        samples = start + count == total
        if samples and sequence.siblings and not self._plan_forks(builder, sequence):
            samples = False
            count -= 1
        if count <= 0 or sequence.state is not State.RUNNING:
            return False
        self._append(builder, sequence, self.kv.blocks_needed(sequence.block_tables, start + count))
        builder.chunks.append(Chunk(sequence, start, count, samples))
        if samples and sequence.beam_group is not None:
            candidates = sequence.beam_group.search.candidates
            builder.beam_candidates = max(builder.beam_candidates, candidates)
        builder.budget -= count
        self.counters.chunked_prefills += not samples
        return True

    def _longest_chunk(self) -> int:
        most = self.settings.max_num_batched_tokens
        return min(self.settings.long_prefill_token_threshold or most, most)

    def _fit_blocks(self, builder: PlanBuilder, sequence: Sequence, start: int, count: int) -> int:
        """Tokens of the chunk that find room; preempts only when nothing else would go on."""
        tables = sequence.block_tables
        needed = self.kv.blocks_needed(tables, start + count)
        if self.kv.can_append(needed):
            return count
        builder.short_of_blocks = True
        fitting = (len(tables.tables[0]) + self.kv.num_available) * self.kv.block_size - start
        if fitting > 0:
            return min(count, fitting)
        if self._others_go_on(builder) or not self._make_room(builder, sequence, 1):
            return 0
        return min(count, len(tables.tables[0]) * self.kv.block_size + self.kv.block_size - start)

    def _others_go_on(self, builder: PlanBuilder) -> bool:
        """Whether waiting for blocks will end by itself: something runs and will release some."""
        in_flight = self.releases.retired < self._next_step - 1
        return bool(len(builder.decodes) or builder.chunks or in_flight)

    def _append(self, builder: PlanBuilder, sequence: Sequence, count: int) -> None:
        if not count:
            return
        tables, row = sequence.block_tables, sequence.row
        builder.append_blocks(row, tables, self.kv.append(tables, count))
        self.rows.capacity[row] = len(tables.tables[0]) * self.kv.block_size

    def _leave_windows(self, sequence: Sequence) -> None:
        """Give back the blocks that fell out of every window; first, so that they can be had."""
        if self._windowed:
            row = sequence.row
            gone = self.kv.outside_windows(sequence.block_tables, int(self.rows.computed[row]))
            self.releases.add_blocks(gone, int(self.rows.last_step[row]))

    # -- n > 1 --------------------------------------------------------------------------------

    def _plan_forks(self, builder: PlanBuilder, lead: Sequence) -> bool:
        """Fork the siblings off at the prompt's last token; False if their blocks are not there."""
        t, size = self.rows, self.kv.block_size
        total = int(t.total[lead.row])
        lead_needs = self.kv.blocks_needed(lead.block_tables, total)
        partial = 1 if total % size else 0
        needed = lead_needs + partial * len(lead.siblings)
        if not self.kv.can_append(needed):
            builder.short_of_blocks = True
            if self._others_go_on(builder) or not self._make_room(builder, lead, needed):
                return False
        self._append(builder, lead, lead_needs)
        for sibling in list(lead.siblings):
            self._fork(builder, lead, sibling, total)
            self._part(lead, sibling)
            self.counters.forks += 1
        return True

    def _fork(self, builder: PlanBuilder, lead: Sequence, sibling: Sequence, total: int) -> None:
        t, row = self.rows, sibling.row
        full = total // self.kv.block_size
        tables = self.kv.new_tables(lead.request.cache_salt)
        for group, table in enumerate(lead.block_tables.tables):
            shared = table[:full]
            self.kv.pools[group].share(block for block in shared if block != NULL_BLOCK)
            tables.tables[group] = list(shared)
        tables.hashes = list(lead.block_tables.hashes)
        tables.windows_start = list(lead.block_tables.windows_start)
        sibling.tables = tables
        if total % self.kv.block_size:
            pairs = [
                (source[full], fresh[0])
                for source, fresh in zip(
                    lead.block_tables.tables, self.kv.append(tables, 1), strict=True
                )
            ]
            self._copies.append(ForkCopy(lead, sibling, pairs))
        t.computed[row] = t.total[row] = t.known[row] = total
        t.capacity[row] = len(tables.tables[0]) * self.kv.block_size
        t.committed[row] = len(tables.hashes)
        t.active[row] = True
        sibling.num_cached = lead.num_cached
        sibling.reported = sibling.num_prompt  # the lead reports the prompt they share
        block_tables = [int32(table) for table in tables.tables]
        builder.forks.append(RowFork(lead.row, row, block_tables, sibling.sampling))

    def _plan_copies(self, builder: PlanBuilder, copies: list[ForkCopy]) -> None:
        """Copies for siblings that go on computing; the others' blocks may be handed on already."""
        t = self.rows
        for copy in copies:
            row = copy.sibling.row
            if copy.sibling.state is State.RUNNING and t.total[row] < t.limit[row]:
                self._hold_copies(builder)
                for group, pair in zip(builder.copies, copy.pairs, strict=True):
                    group.append(pair)

    def _hold_copies(self, builder: PlanBuilder) -> None:
        if not builder.copies:
            builder.copies = [[] for _ in self.kv.groups]

    # -- admission ----------------------------------------------------------------------------

    def _admit(self, builder: PlanBuilder) -> None:
        while builder.budget > 0 and not builder.short_of_blocks:
            sequence = self.waiting.peek()
            if sequence is None or self.rows.num_free < sequence.rows_needed:
                return
            if not self._start(builder, sequence):
                return

    def _start(self, builder: PlanBuilder, sequence: Sequence) -> bool:
        """Give `sequence` its rows, its cached prefix and a first chunk; False if it must wait."""
        if sequence.beam_group is not None:
            return self._start_group(builder, sequence.beam_group)
        if self._still_blocked(sequence):
            return False
        tables = self.kv.new_tables(sequence.request.cache_salt)
        caching = sequence.request.params.prompt_logprobs is None
        tokens = sequence.tokens if caching else sequence.tokens[:1]
        hit = self.kv.find_prefix(tokens, tables.root, sequence.request.block_hashes)
        wanted = self.blocks_to_start(len(sequence.tokens), 1 + len(sequence.siblings))
        needed = self._available_to_fit(wanted, hit.tables)
        if not self._are_available(needed):
            self._blocked = (sequence, needed, self._next_step + LOOK_AGAIN_AFTER)
            return False
        self.waiting.pop()
        self.kv.take(tables, hit)
        sequence.tables = tables
        self._enter(builder, sequence, hit.num_tokens)
        self._plan_chunk(builder, sequence)
        return True

    def blocks_to_start(self, num_tokens: int, samples: int) -> list[int]:
        """Blocks by group to prefill `num_tokens` and sample; each further sample adds one."""
        blocks = self.kv.blocks_kept(num_tokens + 1, self._longest_chunk())
        return [count + samples - 1 for count in blocks]

    def _available_to_fit(self, wanted: list[int], cached: list[list[int]]) -> list[int]:
        """How many blocks each group must be able to hand out, so that `wanted` of them, `cached`
        among them, fit beside what runs."""
        needed = []
        running = self.rows.active.any()
        for pool, blocks, table in zip(self.kv.pools, wanted, cached, strict=True):
            margin = int(WATERMARK * pool.capacity) if running else 0
            # A hit that nobody holds counts as available, but will be taken.
            held = sum(1 for b in table if b != NULL_BLOCK and pool.references(b))
            needed.append(blocks - held + margin)
        return needed

    def _are_available(self, counts: list[int]) -> bool:
        return all(p.num_available >= n for p, n in zip(self.kv.pools, counts, strict=True))

    def _still_blocked(self, sequence: Sequence) -> bool:
        """Whether looking up the prefix of a sequence that did not fit would be in vain."""
        if self._blocked is None or not self.rows.active.any():
            return False
        who, needed, look_again = self._blocked
        return who is sequence and self._next_step < look_again and not self._are_available(needed)

    def _enter(self, builder: PlanBuilder, sequence: Sequence, num_cached: int) -> None:
        t = self.rows
        row = t.acquire(sequence)
        sequence.state = State.RUNNING
        sequence.times.started = sequence.times.started or time.monotonic()
        for sibling in sequence.siblings:
            t.acquire(sibling)
            sibling.state = State.RUNNING
        t.computed[row] = num_cached
        t.committed[row] = num_cached // self.kv.block_size
        t.capacity[row] = num_cached
        t.active[row] = True
        t.special[row] = self._is_special(sequence)
        if sequence.num_cached is None:
            sequence.num_cached = min(num_cached, sequence.num_prompt)
            if self.kv.caching and sequence.request.params.prompt_logprobs is None:
                self.counters.prefix_queries += len(sequence.tokens)
            self.counters.prefix_hits += num_cached
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

    @staticmethod
    def _is_special(sequence: Sequence) -> bool:
        return (
            bool(sequence.siblings)
            or sequence.beam_group is not None
            or sequence.wants_prompt_logprobs
        )

    # -- bookkeeping --------------------------------------------------------------------------

    def _advance(self, plan: StepPlan) -> None:
        t = self.rows
        t.computed[plan.rows] += plan.num_new
        t.total[plan.sample_rows] += 1
        t.last_step[plan.rows] = t.last_step[plan.sample_rows] = plan.step_id
        for chunk in plan.prompt_logprobs:
            row = int(plan.rows[chunk.entry])
            sequence = t.sequence(row)
            t.special[row] = self._is_special(sequence)
        if plan.beam_samples is not None:
            t.active[plan.sample_rows[plan.beam_samples]] = False
        self._next_step += 1
        self.counters.steps += 1
        self.counters.computed_tokens += plan.num_tokens


def _handles(lead: Sequence) -> range:
    return range(lead.handle, lead.handle + lead.request.params.n)
