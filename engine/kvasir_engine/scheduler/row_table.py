"""The CPU's view of the persistent batch: arrays by row, so that a decode step touches no object.

A row's `known` tokens have ids on the CPU; `total` counts sampled tokens still in flight too, and
what is forced behind them;
`computed` tokens have their KV written by a launched step. A row is ready to decode when exactly
one token is not computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kvasir_engine.scheduler.sequence import NEVER, Sequence
from kvasir_engine.step_plan import Int32Array, Int64Array, StepPlan

STOP_IDS_IN_TABLE = 8
NO_TOKEN = -1


class RowTable:
    """Rows 0 .. num_rows - 1, owned by sequences."""

    def __init__(self, num_rows: int, max_tokens: int) -> None:
        self.num_rows = num_rows

        def zeros() -> Int32Array:
            return np.zeros(num_rows, dtype=np.int32)

        self.known, self.total, self.computed = zeros(), zeros(), zeros()
        self.limit, self.capacity = zeros(), zeros()
        self.committed = zeros()
        """Blocks made findable."""
        self.last_step = np.full(num_rows, -1, dtype=np.int64)
        """The last launched step that names the row."""
        self.active = np.zeros(num_rows, dtype=np.bool_)
        """True for rows that may be scheduled as ordinary ones, [rows]."""
        self.owned = np.zeros(num_rows, dtype=np.bool_)
        self.finished = np.zeros(num_rows, dtype=np.bool_)
        """True for rows whose tokens in flight are dropped, [rows]."""
        self.special = np.zeros(num_rows, dtype=np.bool_)
        """Needs a look at its object each step: an unforked lead, or prompt log-probabilities."""
        self.quiet = np.zeros(num_rows, dtype=np.bool_)
        """True for rows whose tokens travel packed: announced, no log-probabilities, [rows]."""
        self.handle, self.client = zeros(), zeros()
        self.logprobs = np.full(num_rows, -1, dtype=np.int32)
        self.num_logprobs = 0
        """Rows that want log-probabilities: mostly none, and then nobody looks for them."""
        self.masked_from = np.full(num_rows, NEVER, dtype=np.int32)
        """Position from which on a row's tokens are sampled with masks, [rows]."""
        self.forced = np.zeros(num_rows, dtype=np.int32)
        """Tokens in a row's history that become known with the one that is being sampled, [rows]
        (masks.py)."""
        self.num_constrained = 0
        """Rows that may need masks: mostly none, and then nobody looks for them."""
        self.awaits_bias = np.zeros(num_rows, dtype=np.bool_)
        """True for rows whose next token has no bias yet, [rows]."""
        self.num_processed = 0
        """Rows that have logits processors: mostly none, and then nobody looks for them."""
        self.stop_ids = np.full((num_rows, STOP_IDS_IN_TABLE), NO_TOKEN, dtype=np.int32)
        self.many_stops: set[int] = set()
        """Rows with more stop ids than the table holds."""
        # Pages of unused history are never touched, so they cost no memory.
        self.history = np.zeros((num_rows, max_tokens), dtype=np.int32)
        self.sequences: list[Sequence | None] = [None] * num_rows
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Rows nobody owns."""
        return len(self._free)

    def sequence(self, row: int) -> Sequence:
        """The row's owner."""
        owner = self.sequences[row]
        if owner is None:
            raise AssertionError(f"row {row} has no owner.")
        return owner

    def named_by(self, plans: Iterable[StepPlan]) -> Iterator[tuple[int, int]]:
        """Yield handle and client of the rows that plans compute or sample, also of a row that has
        been released since."""
        rows = sorted({row for p in plans for row in (*p.rows.tolist(), *p.sample_rows.tolist())})
        return zip(self.handle[rows].tolist(), self.client[rows].tolist(), strict=True)

    def known_tokens(self, row: int) -> Int32Array:
        """A copy of the row's known tokens."""
        return self.history[row, : self.known[row]].copy()

    def acquire(self, sequence: Sequence) -> int:
        """Give `sequence` a row and load its state; nothing is computed yet."""
        row = self._free.pop()
        self.sequences[row] = sequence
        self.owned[row] = True
        sequence.row = row
        count = len(sequence.tokens)
        self.history[row, :count] = sequence.tokens
        self.known[row] = self.total[row] = count
        self.computed[row] = self.capacity[row] = self.committed[row] = 0
        self.limit[row] = sequence.limit
        self.last_step[row] = -1
        self.finished[row] = False
        params = sequence.request.params
        self.handle[row], self.client[row] = sequence.handle, sequence.request.client
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self.num_logprobs += params.logprobs is not None
        self.masked_from[row] = sequence.masked_from
        self.forced[row] = 0
        self.num_constrained += sequence.matcher is not None
        self.awaits_bias[row] = False
        self.num_processed += sequence.has_processors
        self.quiet[row] = sequence.announced and params.logprobs is None
        stops = sequence.request.all_stop_ids()
        self.stop_ids[row] = NO_TOKEN
        self.stop_ids[row, : len(stops)] = stops[:STOP_IDS_IN_TABLE]
        if len(stops) > STOP_IDS_IN_TABLE:
            self.many_stops.add(row)
        return row

    def release(self, row: int) -> Int32Array:
        """Take the row back; returns its known tokens."""
        sequence = self.sequence(row)
        tokens = self.known_tokens(row)
        self.sequences[row] = None
        self.many_stops.discard(row)
        self.num_logprobs -= sequence.request.params.logprobs is not None
        self.num_constrained -= sequence.matcher is not None
        self.num_processed -= sequence.has_processors
        sequence.row = -1
        self.active[row] = self.special[row] = self.owned[row] = False
        self._free.append(row)
        return tokens

    def masked_among(self, rows: Int32Array) -> Int32Array | None:
        """Return which of `rows` need masks for the tokens that a step, counted already, is to
        sample: indices into `rows`; None = none does."""
        if not self.num_constrained:
            return None
        masked = (self.total[rows] > self.masked_from[rows]).nonzero()[0]
        return masked.astype(np.int32) if len(masked) else None

    def going(self, left: Int32Array) -> Int64Array:
        """Return the rows that may go on, of those that have tokens `left` [rows] to compute."""
        going: Int64Array = (self.active & (self.total < self.limit) & (left > 0)).nonzero()[0]
        return going[~self.awaits_bias[going]] if self.num_processed else going

    def add_biases(self, plan: StepPlan) -> None:
        """Give `plan` the biases of what it samples; none of these rows samples again before it
        has another one."""
        if not self.num_processed:
            return
        owners = [self.sequence(row) for row in plan.sample_rows.tolist()]
        biased = [i for i, owner in enumerate(owners) if owner.has_processors]
        if biased:
            plan.biased = np.array(biased, dtype=np.int32)
            plan.biases = [owners[i].bias for i in biased]
            self.awaits_bias[plan.sample_rows[plan.biased]] = True

    def hits_stop(
        self, rows: Int32Array, tokens: Int32Array
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return whether each row's new token ends it, bool [rows]."""
        hits = self.stop_ids[rows] == tokens[:, None]
        # Counting takes a third of the time of any(axis=1), and mostly there is nothing to find.
        ended: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
            hits.any(axis=1) if np.count_nonzero(hits) else np.zeros(len(rows), dtype=np.bool_)
        )
        if self.many_stops:
            for i, (row, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
                if row in self.many_stops:
                    ended[i] = token in self.sequence(row).request.all_stop_ids()
        return ended
