"""Masks of the rows whose output a grammar or a budget constrains, made while the device computes.

A step's masks need the tokens of all steps before it: the loop takes these in after the forward
pass was launched, and only then has the masks made and the sampling launched.

Where a mask leaves a single token, so may the masks behind it. The tokens of such a run, behind the
one that the step samples, are *forced*: they are the row's as soon as the step's own token is, and
the next plan brings them to the device, which computes them all in one chunk. A run holds no token
that ends the output and none at its limit, so that only a sampled token ends a sample. Rows that
want log-probabilities have no runs: each of their tokens is sampled by a step.

A chunk makes of a step of decodes one that no CUDA graph replays, and all rows wait for that. So
runs are followed only where that step has chunks anyway, or where they spare the rows more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvasir_engine.grammar.matcher import FillMasks, GrammarMatcher, only_tokens
from kvasir_engine.grammar.thinking import ANY_TOKEN, FreeMatcher, begin, is_over
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import NEVER, Sequence
from kvasir_engine.step_plan import Int32Array, Int64Array, StepPlan

MAX_FORCED = 16
"""Forced tokens of a run, which bounds the masks that are made in one step."""
CHUNKS_COST = 2.0
"""Decodes that a step with chunks takes longer than a decode: 1.1 with 64 rows of Llama-3.1-8B on
an H200, 1.9 with one (`benchmarks/grammar_engine.py`)."""
USUAL_RUN = 4.0
"""Forced tokens of a run as long as nothing is known."""
_WEIGHT = 1 / 32
"""Weight of one run, or of a step whose runs are not followed, in what is expected of the next."""


@dataclass(slots=True)
class _Run:
    """Tokens that must follow a sequence's known ones: the first is sampled, others are forced."""

    sequence: Sequence
    tokens: list[int]
    stop_ids: list[int]
    room: int
    """Tokens that it may have."""

    def take(self, token: int | None) -> bool:
        """Add a token that must follow; False if the run ends before it."""
        if token is None or token in self.stop_ids or len(self.tokens) == self.room:
            return False
        self.tokens.append(token)
        return True


@dataclass(slots=True, eq=False)
class MaskPlanner:
    """Fill plans' masks from the rows' matchers."""

    rows: RowTable
    words: int
    """Words of a mask."""
    fill: FillMasks
    forced: list[tuple[int, int, int]] = field(default_factory=list)
    """Row, index and token of what the next plan appends to rows' histories."""
    expected: float = USUAL_RUN
    """Forced tokens of a run, as the last runs were; what is not seen fades."""

    def fill_masks(self, plan: StepPlan) -> list[Sequence]:
        """Give `plan` its masks; every step before it has been taken in. Return the sequences that
        no token can go on: whoever samples for them drops the result."""
        if plan.masked is None:
            return []
        t = self.rows
        masks: Int32Array = np.full((len(plan.masked), self.words), ANY_TOKEN, dtype=np.int32)
        rows = plan.sample_rows[plan.masked].tolist()
        going = [i for i, row in enumerate(rows) if not t.finished[row]]
        sequences = [t.sequence(rows[i]) for i in going]
        stuck = [each for each in sequences if not (self._catch_up(each) or self._set_free(each))]
        filled, set_words = self._filled(sequences)
        only = only_tokens(filled, set_words)
        if self._pays(len(only), len(plan.sample_rows)):
            runs = self._runs(sequences, only)
            self._force([each for each in runs if each.sequence not in stuck])
        empty = np.flatnonzero(set_words == 0)
        stuck += [sequences[i] for i in empty.tolist() if not self._set_free(sequences[i])]
        filled[empty] = ANY_TOKEN
        masks[going] = filled
        over = [each.row for each in sequences if is_over(_matcher(each))]
        t.masked_from[over] = NEVER
        plan.masks = masks
        return list(dict.fromkeys(stuck))

    def take_forced(self) -> Int32Array | None:
        """Remove and return what the next plan appends, [n, 3]; None = nothing."""
        if not self.forced:
            return None
        taken = np.array(self.forced, dtype=np.int32)
        self.forced.clear()
        return taken

    def _filled(self, sequences: list[Sequence]) -> tuple[Int32Array, Int64Array]:
        """Masks of the tokens behind all that the sequences' matchers have taken in, and how many
        words of each allow any."""
        filled: Int32Array = np.zeros((len(sequences), self.words), dtype=np.int32)
        self.fill([_matcher(each) for each in sequences], filled)
        return filled, np.count_nonzero(filled, axis=1)

    def _pays(self, runs: int, num_rows: int) -> bool:
        """Return whether to follow so many runs, of a step that samples for `num_rows`."""
        if not runs:
            return False
        t = self.rows
        if np.count_nonzero((t.total - t.computed > 1) & t.active):
            return True
        if runs * self.expected >= CHUNKS_COST * num_rows:
            return True
        self.expected += _WEIGHT * (USUAL_RUN - self.expected)
        return False

    def _runs(self, sequences: list[Sequence], only: dict[int, int]) -> list[_Run]:
        """Runs of sequences whose masks leave a single token, by their indices."""
        runs = []
        for index, token in only.items():
            sequence = sequences[index]
            request = sequence.request
            if request.params.logprobs is None:
                left = int(self.rows.limit[sequence.row] - self.rows.known[sequence.row])
                room = min(left - 1, 1 + MAX_FORCED)
                run = _Run(sequence, [], request.all_stop_ids(), room)
                if run.take(token):
                    runs.append(run)
        return runs

    def _force(self, runs: list[_Run]) -> None:
        """Follow the runs to their ends, and append what is forced to their rows."""
        going = runs
        while going:
            going = [each for each in going if _matcher(each.sequence).accept(each.tokens[-1])]
            only = only_tokens(*self._filled([each.sequence for each in going]))
            going = [each for i, each in enumerate(going) if each.take(only.get(i))]
        t = self.rows
        for run in runs:
            row, count = run.sequence.row, len(run.tokens) - 1
            self.expected += _WEIGHT * (count - self.expected)
            if count:
                first = int(t.known[row])
                t.history[row, first : first + 1 + count] = run.tokens
                t.total[row] += count
                t.forced[row] = count
                places = range(first + 1, first + 1 + count)
                self.forced += [
                    (row, at, token) for at, token in zip(places, run.tokens[1:], strict=True)
                ]

    def _catch_up(self, sequence: Sequence) -> bool:
        """Have the sequence's matcher take in all known output; False where it does not."""
        matcher, row = _matcher(sequence), sequence.row
        output = self.rows.history[row, sequence.num_prompt : self.rows.known[row]]
        if matcher.num_accepted > len(output):
            # Output that was taken in and then lost with a step that failed.
            matcher.restart()
        return all(matcher.accept(int(token)) for token in output[matcher.num_accepted :])

    def _set_free(self, sequence: Sequence) -> bool:
        """Let a sequence go on without its grammar if nobody has asked for that; a budget of its
        reasoning stays."""
        request = sequence.request
        if request.may_be_free:
            sequence.matcher = begin(None, [], request.thinking) or FreeMatcher()
            self._catch_up(sequence)
        return request.may_be_free


def _matcher(sequence: Sequence) -> GrammarMatcher:
    if sequence.matcher is None:
        raise AssertionError(f"sequence {sequence.handle} has nothing that constrains it.")
    return sequence.matcher
