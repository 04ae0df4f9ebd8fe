"""Biases that logits processors give to samples, made on a thread beside the steps.

A sample with processors is planned only once the bias of its next token is there, so it alone waits
for them: steps go on with the others. The processors of all requests are called one after the
other, since a function may keep state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any, TypeAlias

from kvasir_engine.sampling_params import LogitsProcessor
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.scheduler.sequence import Sequence, SequenceState

log = logging.getLogger(__name__)

MakeBias: TypeAlias = Callable[[list[LogitsProcessor], list[int], list[int], int], Any]
"""Returns the bias of processors, prompt ids, output ids and the size of the vocabulary."""
WAIT_SECONDS = 0.1
"""Time that an otherwise idle loop waits for a bias at once, so that it can be interrupted."""


class LogitsBiases:
    """Have biases made for a scheduler's samples, and hand them over. Called on one thread."""

    def __init__(self, scheduler: Scheduler, make: MakeBias | None = None) -> None:
        """`make` is `bias_of` of sampling/logits_processors.py unless given."""
        self._scheduler = scheduler
        self._bias_of = make or _bias_of
        self._samples: dict[int, Sequence] = {}
        """Samples that have processors, by handle."""
        self._making: dict[int, tuple[Sequence, int, Future[Any]]] = {}
        """Sample, position and bias to be of those that wait, by handle."""

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "logits-processors")

    def watch(self, lead: Sequence) -> None:
        """Give biases to a request's samples, if it has processors."""
        if lead.has_processors:
            self._samples |= {each.handle: each for each in (lead, *lead.siblings)}

    def turn(self) -> list[tuple[Sequence, str]]:
        """Hand over what is made and have made what is missing; return the samples whose processors
        failed, each with a sentence."""
        if not self._samples:
            return []
        failed = []
        for sequence, position, made in self._take_made():
            try:
                self._give(sequence, made.result(), position)
            except Exception as error:
                failed.append((sequence, _sentence(error)))
        ended = {each for each, _ in failed}
        for handle, sequence in list(self._samples.items()):
            if self._scheduler.by_handle.get(handle) is not sequence or sequence in ended:
                del self._samples[handle]
            elif handle not in self._making and self._is_due(sequence):
                self._make(sequence)
        return failed

    def wait(self) -> bool:
        """Wait a moment for a bias; False, at once, if none is being made."""
        futures = [made for _, _, made in self._making.values()]
        wait(futures, WAIT_SECONDS, "FIRST_COMPLETED")
        return bool(futures)

    def close(self) -> None:
        """Call no processor any more."""
        if "_thread" in self.__dict__:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _take_made(self) -> list[tuple[Sequence, int, Future[Any]]]:
        """Remove and return what is made and still wanted."""
        made = {handle: each for handle, each in self._making.items() if each[2].done()}
        for handle in made:
            del self._making[handle]
        known = self._scheduler.by_handle
        return [each for handle, each in made.items() if known.get(handle) is each[0]]

    def _is_due(self, sequence: Sequence) -> bool:
        """Return whether a sample waits for a bias, and all tokens before it are known."""
        if sequence.handle in self._scheduler.waiting.held:
            return True
        t, row = self._scheduler.rows, sequence.row
        running = sequence.state is SequenceState.RUNNING and sequence.lead is None
        return bool(running and t.awaits_bias[row] and t.known[row] == t.total[row])

    def _make(self, sequence: Sequence) -> None:
        ids: list[int] = self._scheduler.known_tokens(sequence).tolist()
        made = self._thread.submit(
            self._bias_of,
            sequence.request.params.logits_processors,
            ids[: sequence.num_prompt],
            ids[sequence.num_prompt :],
            self._scheduler.vocab_size,
        )
        self._making[sequence.handle] = (sequence, len(ids), made)

    def _give(self, sequence: Sequence, bias: Any, position: int) -> None:
        """Let a sample go on with the bias of its token at `position`; siblings that are not forked
        off yet sample it from the same prompt."""
        for each in (sequence, *sequence.siblings):
            each.bias, each.bias_for = bias, position
        scheduler = self._scheduler
        if sequence.handle in scheduler.waiting.held:
            scheduler.waiting.push(sequence)
        elif sequence.state is SequenceState.RUNNING:
            scheduler.rows.awaits_bias[sequence.row] = False


def _bias_of(
    processors: list[LogitsProcessor], prompt: list[int], output: list[int], vocab_size: int
) -> Any:
    # Not at the top: it imports torch, which a simulated engine does not need.
    from kvasir_engine.sampling.logits_processors import bias_of

    return bias_of(processors, prompt, output, vocab_size)


def _sentence(error: Exception) -> str:
    from kvasir_engine.sampling.logits_processors import BiasError

    if isinstance(error, BiasError):
        return f"logits_processors: {error}"
    log.error("a logits processor failed", exc_info=error)
    return f"logits_processors: a processor raised {type(error).__name__}: {error}"
