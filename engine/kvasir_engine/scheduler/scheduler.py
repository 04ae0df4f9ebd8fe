"""Scheduler without phases: a step is {row: tokens} under one budget.

Each step takes, in this order: one token of every row that is ready to decode, a chunk of every
prompt being prefilled, then new sequences from the queue.
Rows that find no block make the latest arrival give up its own (preemption by recompute).

Everything here is an upper bound while steps are in flight: a row counts the token it will have
been given by the steps already launched (`RowTable.total`), and what it owns is released only
after the last launched step that names it has retired.
"""

from __future__ import annotations

import time

import numpy as np

from kvasir_engine.grammar.matcher import FillMasks, Grammar, fill_together, num_words
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import EngineRequest
from kvasir_engine.scheduler.admitter import Admitter
from kvasir_engine.scheduler.chunked_prefill import ChunkedPrefill
from kvasir_engine.scheduler.counters import EndedSequences, SchedulerCounters, SchedulerLoad
from kvasir_engine.scheduler.decodes import DecodePlanner
from kvasir_engine.scheduler.deferred_release import DeferredReleases
from kvasir_engine.scheduler.forks import ForkPlanner
from kvasir_engine.scheduler.masks import MaskPlanner
from kvasir_engine.scheduler.plan_builder import PlanBuilder
from kvasir_engine.scheduler.row_blocks import BlockCommits, RowAllocator
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence, SequenceState, make_sequences
from kvasir_engine.scheduler.step_limit import StepLimit
from kvasir_engine.scheduler.waiting_queue import WaitingQueue
from kvasir_engine.settings import SchedulerSettings
from kvasir_engine.step_plan import Int32Array, StepPlan


class Scheduler:
    """Decide each step. `step_results.py` takes in what a step produced."""

    def __init__(
        self,
        settings: SchedulerSettings,
        kv: KVManager,
        *,
        max_model_len: int,
        vocab_size: int,
        seed: int | None = 0,
        fill_masks: FillMasks = fill_together,
    ) -> None:
        self.settings = settings
        self.kv = kv
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.counters = SchedulerCounters()
        self.limit = StepLimit(settings.max_num_batched_tokens, settings.max_num_seqs)
        self.by_handle: dict[int, Sequence] = {}
        self._seeds = np.random.Generator(np.random.Philox(seed))
        self._fill_masks = fill_masks
        self.ended = EndedSequences()
        self._replaced: list[tuple[int, int, int]] = []
        """Row, index and token of what the next plan writes into rows' histories."""
        self._next_order = 0
        self._next_step = 0
        self._assemble()

    def _assemble(self) -> None:
        """Make an empty queue, rows that nobody owns, and those who plan with them."""
        settings, kv, counters = self.settings, self.kv, self.counters
        self.rows = RowTable(settings.max_num_seqs, self.max_model_len + 1)
        self.waiting = WaitingQueue(settings.policy)
        self.releases = DeferredReleases(kv, self.rows, self.waiting.push)
        self.commits = BlockCommits(kv, self.rows)
        self._blocks = RowAllocator(kv, self.rows, self.waiting, self.releases, counters)
        most = settings.max_num_batched_tokens
        longest = min(settings.long_prefill_token_threshold or most, most)
        self._decodes = DecodePlanner(self.rows, self.waiting, self._blocks)
        self._forks = ForkPlanner(kv, self.rows, self._blocks, counters)
        self._prefill = ChunkedPrefill(
            kv, self.rows, self.waiting, self._blocks, self._forks, counters, longest
        )
        self.admitter = Admitter(
            kv, self.rows, self.waiting, self._prefill, self.releases, counters, self.limit
        )
        self.masks = MaskPlanner(self.rows, num_words(self.vocab_size), self._fill_masks)
        self._replaced.clear()
        self.releases.retired = self._next_step - 1

    # -- requests ---------------------------------------------------------------------------

    def reserve_places(self, count: int) -> int:
        """The first of `count` places in the queue, behind all that wait."""
        first = self._next_order
        self._next_order += count
        return first

    def add(
        self,
        request: EngineRequest,
        *,
        place: int | None = None,
        grammar: Grammar | None = None,
    ) -> Sequence:
        """Queue a request that admission.check has let through; `place` is a reserved one, and
        `grammar` constrains its output."""
        params = request.params
        seed = int(self._seeds.integers(0, 2**63 - 1)) if params.seed is None else params.seed
        lead = make_sequences(
            request,
            order=self.reserve_places(params.n) if place is None else place,
            seed=seed,
            max_model_len=self.max_model_len,
            grammar=grammar,
        )
        self._queue(lead)
        return lead

    def extend(self, sequence: Sequence, token: int) -> None:
        """Let a sequence that was held at its limit compute `token`, in place of what it sampled,
        and sample once more."""
        t, row = self.rows, sequence.row
        last = int(t.known[row]) - 1
        if t.history[row, last] != token:
            t.history[row, last] = token
            self._replaced.append((row, last, token))
        sequence.limit += 1
        t.limit[row] = sequence.limit

    def fork(self, sequence: Sequence, token: int, *, handle: int, place: int) -> Sequence:
        """Queue a continuation of a sequence at its limit by `token`, in place of what it sampled.

        Its other blocks are found in the prefix cache, and the one it ends in is copied.
        """
        row = sequence.row
        if row >= 0:
            self.commits.keep_tail(sequence)
        tokens = self.known_tokens(sequence)
        tokens[-1] = token
        fork = Sequence(
            request=sequence.request,
            handle=handle,
            order=place,
            tokens=tokens,
            num_prompt=sequence.num_prompt,
            limit=len(tokens) + 1,
            sampling=sequence.sampling,
            num_cached=sequence.num_cached,
            announced=True,
        )
        self._queue(fork)
        return fork

    def known_tokens(self, sequence: Sequence) -> Int32Array:
        """A copy of a sequence's known tokens."""
        row = sequence.row
        return self.rows.known_tokens(row) if row >= 0 else sequence.tokens.copy()

    def _queue(self, lead: Sequence) -> None:
        lead.times.queued = time.monotonic()
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

    def end_client(self, client: int) -> None:
        """Stop every sample of one API process."""
        for handle, sequence in list(self.by_handle.items()):
            if sequence.request.client == client:
                self.end(handle)

    def retire(self, sequence: Sequence) -> None:
        """The sequence will sample nothing more; what it owns returns when its last step has."""
        self.by_handle.pop(sequence.handle, None)
        for sibling in list(sequence.siblings):
            self.retire(sibling)
        self._give_up(sequence)
        if sequence.lead is not None:
            self._forks.part(sequence.lead, sequence)

    # -- after a failed step ----------------------------------------------------------------

    def withdraw(self, plan: StepPlan) -> None:
        """`plan` will bring no results: nothing of it is computed, and the log-probabilities that
        it was to report are due again."""
        self.rows.computed[plan.rows] = plan.starts
        for chunk in plan.prompt_logprobs:
            sequence = self.rows.sequences[int(plan.rows[chunk.entry])]
            if sequence is not None:
                sequence.reported = min(sequence.reported, chunk.first)

    def drop(self, sequence: Sequence) -> None:
        """Know a sequence no more, ahead of `requeue_all` or `rebuild`, which free what it owns."""
        if self.by_handle.pop(sequence.handle, None) is None:
            return
        if sequence.handle >= 0:
            self.ended.record(sequence)
        sequence.preempted = False
        if sequence.lead is not None:
            self._forks.part(sequence.lead, sequence)
        elif sequence.state is SequenceState.WAITING:
            self.waiting.drop(sequence)

    def requeue_all(self) -> None:
        """Let every sequence wait and compute its tokens anew; nothing may be in flight.

        What the prefix cache holds stays: most of it is found there.
        """
        self._replaced.clear()
        self.masks.forced.clear()
        self._forks.forget_copies()
        self.releases.retire(self._next_step - 1)
        for sequence in [owner for owner in self.rows.sequences if owner is not None]:
            if sequence.handle not in self.by_handle:
                self.releases.add(sequence)
            elif sequence.lead is None:  # An unforked sibling goes with its lead.
                self._blocks.preempt(sequence)

    def postpone(self, sequence: Sequence) -> None:
        """Let a sequence that owns a row be served last when it waits again."""
        sequence.order = self.reserve_places(1)

    def rebuild(self) -> None:
        """Begin again with what is known of each sequence; whatever else stands here may be wrong.

        Nothing may be in flight. The prefix cache is lost.
        """
        for sequence in self.by_handle.values():
            if sequence.row >= 0 and self.rows.sequences[sequence.row] is sequence:
                sequence.tokens = self.rows.known_tokens(sequence.row)
            sequence.row, sequence.tables, sequence.preempted = -1, None, False
            sequence.state = SequenceState.WAITING
        self.kv.rebuild()
        self._assemble()
        for sequence in self.by_handle.values():
            if sequence.lead is None:
                self.waiting.push(sequence)

    def _give_up(self, sequence: Sequence) -> None:
        """Leave the queue or the row for good."""
        if sequence.handle >= 0:
            self.ended.record(sequence)
        if sequence.state is SequenceState.WAITING:
            if sequence.lead is None:
                self.waiting.drop(sequence)
            sequence.state = SequenceState.GONE
        elif sequence.state is not SequenceState.GONE:
            sequence.preempted = False
            self.rows.active[sequence.row] = False
            self.rows.finished[sequence.row] = True
            self.releases.add(sequence)

    @property
    def num_running(self) -> int:
        """Sequences that own a row and may still produce tokens."""
        return int(np.count_nonzero(self.rows.owned > self.rows.finished))

    @property
    def has_work(self) -> bool:
        """True while a further step may have something to do."""
        return bool(
            len(self.waiting)
            or self.waiting.held
            or np.count_nonzero(self.rows.active)
            or self.releases.pending
        )

    def prefill_backlog(self) -> int:
        """Tokens of admitted and waiting sequences whose KV is still to be computed."""
        rows = self.rows
        left = (rows.total - rows.computed - 1)[rows.active]
        return self.waiting.num_tokens + int(np.maximum(left, 0).sum())

    def load(self) -> SchedulerLoad:
        """Return how much there is to do, for those who choose between engines."""
        return SchedulerLoad(
            self.num_running, len(self.waiting), self.prefill_backlog(), self.kv.usage()
        )

    # -- one step ---------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed now."""
        builder = PlanBuilder(self._next_step, self.limit.tokens)
        self._decodes.plan_decodes(builder)
        self._prefill.plan_chunks(builder)
        self.admitter.admit_waiting(builder)
        self._forks.plan_copies(builder)
        logprobs = self.rows.logprobs if self.rows.num_logprobs else None
        plan = builder.build(self.rows.computed, logprobs)
        if plan is not None:
            self._advance(plan)
            self._forks.planned(builder)
            plan.masked = self.rows.masked_among(plan.sample_rows)
            plan.forced = self.masks.take_forced()
            self.rows.add_biases(plan)
            if self._replaced:
                plan.replaced = np.array(self._replaced, dtype=np.int32)
                self._replaced.clear()
        return plan

    def _advance(self, plan: StepPlan) -> None:
        t = self.rows
        t.computed[plan.rows] += plan.num_new
        t.total[plan.sample_rows] += 1
        t.last_step[plan.rows] = plan.step_id
        if plan.forks:
            t.last_step[plan.sample_rows] = plan.step_id
        for chunk in plan.prompt_logprobs:
            row = int(plan.rows[chunk.entry])
            sequence = t.sequence(row)
            t.special[row] = sequence.is_special
        self._next_step += 1
        self.counters.steps += 1
        self.counters.computed_tokens += plan.num_tokens
        self.counters.prefill_tokens += plan.num_tokens - plan.num_decodes

    def launched(self, plan: StepPlan) -> None:
        """`plan` is on the device: blocks it fills whose tokens are known become findable.

        A decode fills a block with a token that is on its way: `results.apply` commits it.
        """
        if plan.num_decodes < len(plan.rows):
            self.commits.commit_full(plan.rows[plan.num_decodes :])
