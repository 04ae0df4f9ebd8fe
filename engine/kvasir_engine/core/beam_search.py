"""Beam search as an algorithm: candidates in, the next beams out. Knows no rows and no blocks.

The rules are those of transformers' `GenerationMixin._beam_search` without sampling: of all
beams' continuations the best (1 + number of stop ids) * width are looked at; those that end may
join the finished ones only from among the best `width`; scores of finished beams are
sum of log-probabilities / length ** length_penalty, the length counting generated tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvasir_engine.request import FinishReason

NEVER = -1.0e9
"""Score that transformers takes for minus infinity."""


@dataclass(frozen=True, slots=True)
class Beam:
    """Hypothesis: generated tokens, their summed log-probability, the beam it grew from."""

    tokens: tuple[int, ...]
    logprob: float
    parent: int = 0


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A hypothesis that ended; `score` is normalised by length."""

    tokens: tuple[int, ...]
    score: float
    reason: FinishReason


@dataclass(slots=True)
class BeamSearch:
    """State of one search."""

    width: int
    length_penalty: float
    early_stopping: bool
    stop_ids: frozenset[int]
    max_new_tokens: int
    running: list[Beam] = field(default_factory=lambda: [Beam((), 0.0)])
    """Beams to be extended, best first."""
    finished: list[FinishedBeam] = field(default_factory=list)
    """Best first, at most `width`."""
    done: bool = False
    _improvable: bool = True

    @property
    def candidates(self) -> int:
        """Continuations each beam must offer."""
        return max(2, 1 + len(self.stop_ids)) * self.width

    def advance(self, ids: Sequence[npt.ArrayLike], logprobs: Sequence[npt.ArrayLike]) -> None:
        """Extend every running beam i by its best continuations ids[i], logprobs[i]."""
        best = self._best(ids, logprobs)
        length = len(self.running[0].tokens) + 1
        full = length >= self.max_new_tokens
        ends = [full or beam.tokens[-1] in self.stop_ids for beam in best]
        self._finish(best[: self.width], ends[: self.width], length)
        self.running = [beam for beam, ended in zip(best, ends, strict=True) if not ended]
        self.running = self.running[: self.width]
        self.done = not self.running or not self._can_improve(length)

    def _best(self, ids: Sequence[npt.ArrayLike], logprobs: Sequence[npt.ArrayLike]) -> list[Beam]:
        scores = np.concatenate(
            [
                np.asarray(values, dtype=np.float32) + beam.logprob
                for values, beam in zip(logprobs, self.running, strict=True)
            ]
        )
        offered = [np.asarray(each, dtype=np.int32) for each in ids]
        parents = np.repeat(np.arange(len(ids)), [len(each) for each in offered])
        tokens = np.concatenate(offered)
        order = np.argsort(-scores, kind="stable")[: self.candidates]
        return [
            Beam(
                (*self.running[int(parents[i])].tokens, int(tokens[i])),
                float(scores[i]),
                int(parents[i]),
            )
            for i in order
        ]

    def _finish(self, best: list[Beam], ends: list[bool], length: int) -> None:
        """Beams among the best `width` that end join the finished ones, if they may still."""
        filled = len(self.finished) == self.width
        if not self._improvable or (filled and self.early_stopping):
            return
        for beam, ended in zip(best, ends, strict=True):
            if ended:
                stopped = beam.tokens[-1] in self.stop_ids
                reason = FinishReason.STOP if stopped else FinishReason.LENGTH
                score = beam.logprob / length**self.length_penalty
                self.finished.append(FinishedBeam(beam.tokens, score, reason))
        self.finished.sort(key=lambda beam: -beam.score)
        del self.finished[self.width :]

    def _can_improve(self, length: int) -> bool:
        """Return True if the best running beam could still beat the worst finished one."""
        filled = len(self.finished) == self.width
        best = self.running[0].logprob / length**self.length_penalty
        worst = self.finished[-1].score if filled else NEVER
        self._improvable = self._improvable and best > worst
        return self._improvable and not (filled and self.early_stopping)
