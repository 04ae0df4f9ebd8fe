"""Apply a step's results: record tokens, end sequences, collect the deltas for clients."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from kvasir_engine.request import FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.scheduler.sequence import Sequence
from kvasir_engine.step_plan import Int32Array, PromptLogprobs, StepOutput, StepPlan, TokenLogprobs


@dataclass(slots=True)
class StepNews:
    """Results of one step, for the clients.

    Plain tokens (announced samples without log-probabilities that go on) travel as arrays;
    everything else as deltas with the client each belongs to.
    """

    handles: Int32Array
    tokens: Int32Array
    clients: Int32Array
    deltas: list[tuple[int, SampleDelta]] = field(default_factory=list)

    @classmethod
    def empty(cls) -> StepNews:
        """Return news of nothing."""
        nothing: Int32Array = np.zeros(0, dtype=np.int32)
        return cls(nothing, nothing, nothing)

    def extend(self, later: StepNews) -> None:
        """Add the news of a later step. Deltas are told after plain tokens, so those of a sample
        become deltas once it has one."""
        told = {delta.handle for _, delta in self.deltas}
        plain = zip(
            later.handles.tolist(), later.tokens.tolist(), later.clients.tolist(), strict=True
        )
        after = [(client, SampleDelta(h, [token])) for h, token, client in plain if h in told]
        first = ~np.isin(later.handles, list(told))
        self.handles = np.concatenate([self.handles, later.handles[first]])
        self.tokens = np.concatenate([self.tokens, later.tokens[first]])
        self.clients = np.concatenate([self.clients, later.clients[first]])
        self.deltas += after + later.deltas


def apply(scheduler: Scheduler, plan: StepPlan, output: StepOutput) -> StepNews:
    """Step `plan` has retired with `output`."""
    t = scheduler.rows
    live = _live(scheduler, plan)
    rows, tokens = plan.sample_rows, output.tokens
    if live is not None:
        rows, tokens = rows[live], tokens[live]
    # Only steps with masks have rows with forced tokens.
    forced = None if plan.masked is None else _take_forced(scheduler, rows, tokens)
    scheduler.counters.generated_tokens += len(tokens)
    known = t.known[rows]
    t.history[rows, known] = tokens
    known += 1
    if forced is not None:
        known += forced
    t.known[rows] = known
    stopped = t.hits_stop(rows, tokens)
    ended = stopped | (known >= t.limit[rows])
    quiet = t.quiet[rows] & ~ended
    if forced is not None:
        quiet &= forced == 0
    detailed: list[int] = []
    if np.count_nonzero(quiet) == len(rows):
        news = StepNews(t.handle[rows], tokens, t.client[rows])
    else:
        told = rows[quiet]
        news = StepNews(t.handle[told], tokens[quiet], t.client[told])
        detailed = (~quiet).nonzero()[0].tolist()
    _add_prompt_logprobs(scheduler, output.prompt_logprobs, news)
    for i in detailed:
        sequence = t.sequence(int(rows[i]))
        delta = _delta(sequence, int(tokens[i]), output, i if live is None else int(live[i]))
        if forced is not None and forced[i]:
            delta.token_ids += t.history[rows[i], known[i] - forced[i] : known[i]].tolist()
        if ended[i]:
            _end(sequence, delta, stopped=bool(stopped[i]))
        t.quiet[rows[i]] = sequence.request.params.logprobs is None
        news.deltas.append((sequence.request.client, delta))
    scheduler.commits.commit_full(rows)
    for i in detailed:
        if ended[i]:
            sequence = t.sequence(int(rows[i]))
            if sequence.handle >= 0:  # Others are held: who made them goes on or retires them.
                scheduler.retire(sequence)
    scheduler.releases.retire(plan.step_id)
    return news


def _take_forced(scheduler: Scheduler, rows: Int32Array, tokens: Int32Array) -> Int32Array | None:
    """Return how many forced tokens stand behind each of the rows' new ones, [rows]; None = none
    has any. From here on they are known."""
    t = scheduler.rows
    forced = t.forced[rows]
    if not np.count_nonzero(forced):
        return None
    if np.count_nonzero((t.history[rows, t.known[rows]] != tokens) & (forced > 0)):
        raise AssertionError("a step sampled a token that its mask does not allow.")
    t.forced[rows] = 0
    scheduler.counters.generated_tokens += int(forced.sum())
    return forced


def _live(scheduler: Scheduler, plan: StepPlan) -> Int32Array | None:
    """Indices into `sample_rows` whose tokens are wanted; None = all."""
    if not scheduler.releases.pending:
        # A row that has finished is on its way back until its last step has retired.
        return None
    return (~scheduler.rows.finished[plan.sample_rows]).nonzero()[0].astype(np.int32)


def _delta(sequence: Sequence, token: int, output: StepOutput, at: int) -> SampleDelta:
    delta = SampleDelta(sequence.handle, [token])
    _announce(sequence, delta)
    top = sequence.request.params.logprobs
    if top is not None:
        if output.logprobs is None:
            raise AssertionError("a row asked for log-probabilities that the step did not compute.")
        delta.logprobs = [_logprob_entry(token, output.logprobs, at, top)]
    return delta


def _announce(sequence: Sequence, delta: SampleDelta) -> None:
    """A sample's first delta says more."""
    if not sequence.announced:
        sequence.announced = True
        sequence.times.first_token = time.monotonic()
        delta.num_cached_tokens = sequence.num_cached
        delta.seed = sequence.sampling.seed
        if sequence.times.queued:
            delta.times = sequence.times.queued, sequence.times.started


def _logprob_entry(token: int, found: TokenLogprobs, at: int, top: int) -> LogprobEntry:
    entry = LogprobEntry(token, float(found.logprobs[at]), int(found.ranks[at]))
    if top:
        entry.top_ids = found.top_ids[at, :top].tolist()
        entry.top_logprobs = found.top_logprobs[at, :top].tolist()
    return entry


def _end(sequence: Sequence, delta: SampleDelta, *, stopped: bool) -> None:
    delta.finish_reason = FinishReason.STOP if stopped else FinishReason.LENGTH
    token = delta.token_ids[-1]
    params = sequence.request.params
    is_eos = token in sequence.request.eos_token_ids and not params.ignore_eos
    if stopped and not is_eos:
        delta.stop_reason = token


def _add_prompt_logprobs(
    scheduler: Scheduler, reports: list[PromptLogprobs], news: StepNews
) -> None:
    t = scheduler.rows
    for report in reports:
        if t.finished[report.row]:
            continue
        sequence = t.sequence(report.row)
        found = report.found
        count, top = found.top_ids.shape
        targets = t.history[report.row, report.first + 1 :][:count].tolist()
        entries = [_logprob_entry(token, found, i, top) for i, token in enumerate(targets)]
        delta = SampleDelta(sequence.handle, [], prompt_logprobs=entries)
        _announce(sequence, delta)
        news.deltas.append((sequence.request.client, delta))
