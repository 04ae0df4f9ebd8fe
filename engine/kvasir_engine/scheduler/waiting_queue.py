"""Sequences that wait for a row, in order of service."""

from __future__ import annotations

import heapq

from kvasir_engine.scheduler.sequence import Sequence
from kvasir_engine.settings import SchedulingPolicy


class WaitingQueue:
    """A heap on (priority, arrival), or on arrival alone under fcfs.

    A preempted sequence keeps its number of arrival and so comes back near the front.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._by_priority = policy == "priority"
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._dropped: set[int] = set()
        self.held: dict[int, Sequence] = {}
        """Sequences by handle that cannot be given a row before they have a bias."""
        self.num_tokens = 0
        """Tokens to prefill, prefix hits not subtracted."""

    def __len__(self) -> int:
        return len(self._heap) - len(self._dropped)

    def key(self, sequence: Sequence) -> tuple[int, int]:
        """Order of service: smaller first. fcfs makes all priorities equal."""
        return (sequence.request.priority if self._by_priority else 0, sequence.order)

    def push(self, sequence: Sequence) -> None:
        """Add a sequence; one that awaits a bias is held back until it is pushed again."""
        if sequence.awaits_bias:
            self.held[sequence.handle] = sequence
            return
        self.held.pop(sequence.handle, None)
        heapq.heappush(self._heap, (self.key(sequence), sequence))
        self.num_tokens += len(sequence.tokens)

    def peek(self) -> Sequence | None:
        """The next to be served."""
        while self._heap and self._heap[0][1].order in self._dropped:
            self._dropped.discard(heapq.heappop(self._heap)[1].order)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        """Take the next to be served; peek() returned it."""
        sequence = heapq.heappop(self._heap)[1]
        self.num_tokens -= len(sequence.tokens)
        return sequence

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that waits here."""
        if self.held.pop(sequence.handle, None) is not None:
            return
        self._dropped.add(sequence.order)
        self.num_tokens -= len(sequence.tokens)
        if 2 * len(self._dropped) > len(self._heap):
            # Those behind a head that cannot start would otherwise pile up without limit.
            self._heap = [entry for entry in self._heap if entry[1].order not in self._dropped]
            heapq.heapify(self._heap)
            self._dropped.clear()
