"""The latest prompt reports, for a watcher that comes again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from kvasir.wire.prompt_report.report import PromptReport

KEPT_SECONDS = 10.0
"""More than a router takes to come again after its stream ended, even when it is refused once."""

MAX_KEPT_REPORTS = 2048
MAX_KEPT_BLOCKS = 32 * 1024
"""Text blocks of all kept reports: about 3 MB."""


class ReportBacklog:
    """Keep the reports of the last `KEPT_SECONDS`, or fewer when they are many: what was sent when
    a stream ended, and what was made before the next one began, reached nobody for certain."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: deque[tuple[float, PromptReport]] = deque()
        self._blocks = 0

    def add(self, report: PromptReport) -> None:
        """Keep a report, and the older ones as far as there is room."""
        self._kept.append((self._clock(), report))
        self._blocks += len(report.text_hashes)
        while len(self._kept) > MAX_KEPT_REPORTS or self._blocks > MAX_KEPT_BLOCKS:
            self._drop_oldest()

    def recent(self) -> list[PromptReport]:
        """Return what is kept, the oldest first."""
        oldest = self._clock() - KEPT_SECONDS
        while self._kept and self._kept[0][0] <= oldest:
            self._drop_oldest()
        return [report for _, report in self._kept]

    def clear(self) -> None:
        """Keep nothing of what came so far."""
        self._kept.clear()
        self._blocks = 0

    def _drop_oldest(self) -> None:
        _, report = self._kept.popleft()
        self._blocks -= len(report.text_hashes)
