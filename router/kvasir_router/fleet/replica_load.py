"""Load of a replica: its last report plus the credit given since."""

import time
from collections.abc import Callable
from dataclasses import dataclass

STALE_SECONDS = 0.5
"""A push source that is silent for so long is suspect (it speaks at least every 0.2 s)."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """An engine's own account."""

    running: int
    waiting: int
    inflight_tokens: int
    """Tokens of admitted requests whose KV is not computed yet."""
    kv_usage: float
    """0 to 1: KV blocks held by requests."""
    at: float
    """time.monotonic() of its arrival."""


class ReplicaLoad:
    """The last report, and the credit of requests since.

    Credit is given at the choice and returned at the answer's first byte or the request's end,
    whichever is first, so that choices between two reports do not all fall on one replica.
    `given` counts what was chosen since the last report, which no report holds yet.
    """

    __slots__ = (
        "awake_since",
        "credit",
        "given",
        "heard",
        "kv_capacity",
        "report",
        "report_every",
    )

    def __init__(self) -> None:
        self.report: LoadReport | None = None
        self.report_every = 0.0
        """Seconds between reports of the source: 0.2 at most for a push; 0 = there is none, or it
        has said nothing yet."""
        self.kv_capacity = 0
        """Tokens its KV cache holds; 0 = unknown."""
        self.credit = 0
        """Uncached prompt tokens of this router's requests without a first byte."""
        self.given = 0
        """The part of `credit` that is younger than the last report."""
        self.heard: Callable[[LoadReport], None] = lambda report: None
        """Called with each report."""
        self.awake_since: Callable[[], float] = lambda: 0.0
        """Returns the time.monotonic() from which on this process could hear the source."""

    def give(self, tokens: int) -> None:
        """A request with `tokens` uncached prompt tokens was chosen to come here."""
        self.credit += tokens
        self.given += tokens

    def take_back(self, tokens: int) -> None:
        """Its first byte came, or it ended."""
        self.credit -= tokens
        self.given = min(self.given, self.credit)

    def reported(self, report: LoadReport) -> None:
        """The engine spoke."""
        self.report = report
        self.given = 0
        self.heard(report)

    def lost(self) -> None:
        """The engine's process is gone, and what it said means nothing any more."""
        self.report = None
        self.report_every = 0.0

    @property
    def stale(self) -> bool:
        """True if there is a source and it has been silent for too long, time in which this process
        stood still not counted."""
        if not self.report_every:
            return False
        if self.report is None:
            return True
        limit, now = max(STALE_SECONDS, 2.5 * self.report_every), time.monotonic()
        return now - self.report.at > limit and now - self.awake_since() > limit

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens in flight, everybody's: the report's and what came since, and
        never less than this router knows of."""
        if self.report is None or self.stale:
            return self.credit
        return max(self.credit, self.report.inflight_tokens + self.given)
