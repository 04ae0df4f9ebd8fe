"""Masks of the rows whose output a grammar constrains, made while the device computes the step.

A step's masks need the tokens of all steps before it: the loop takes these in after the forward
pass was launched, and only then has the masks made and the sampling launched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvasir_engine.grammar.matcher import FillMasks, GrammarMatcher
from kvasir_engine.grammar.thinking import ANY_TOKEN, FreeMatcher
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence
from kvasir_engine.step_plan import Int32Array, StepPlan


@dataclass(slots=True, eq=False)
class MaskPlanner:
    """Fill plans' masks from the rows' matchers."""

    rows: RowTable
    words: int
    """Words of a mask."""
    fill: FillMasks

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
        stuck = [each for each in sequences if not (self._catch_up(each) or _set_free(each))]
        matchers = [_matcher(each) for each in sequences]
        filled: Int32Array = np.zeros((len(going), self.words), dtype=np.int32)
        self.fill(matchers, filled)
        empty = np.flatnonzero(np.count_nonzero(filled, axis=1) == 0)
        stuck += [sequences[i] for i in empty.tolist() if not _set_free(sequences[i])]
        filled[empty] = ANY_TOKEN
        masks[going] = filled
        plan.masks = masks
        return list(dict.fromkeys(stuck))

    def _catch_up(self, sequence: Sequence) -> bool:
        """Have the sequence's matcher take in all known output; False where it does not."""
        matcher, row = _matcher(sequence), sequence.row
        output = self.rows.history[row, sequence.num_prompt : self.rows.known[row]]
        if matcher.num_accepted > len(output):
            # Output that was taken in and then lost with a step that failed.
            matcher.restart()
        return all(matcher.accept(int(token)) for token in output[matcher.num_accepted :])


def _set_free(sequence: Sequence) -> bool:
    """Let a sequence go on without its grammar if nobody has asked for that."""
    if sequence.request.may_be_free:
        sequence.matcher = FreeMatcher()
    return sequence.request.may_be_free


def _matcher(sequence: Sequence) -> GrammarMatcher:
    if sequence.matcher is None:
        raise AssertionError(f"sequence {sequence.handle} has no grammar.")
    return sequence.matcher
