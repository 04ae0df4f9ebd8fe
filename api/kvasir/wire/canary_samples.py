"""Samples of a canary and of the stable revision beside it: routers count, operators compare.

Latencies are counted in logarithmic bins, the same in every process, so that counts of several
routers add up, and a latency that is x % longer lies a fixed number of bins further on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, exp, log
from typing import Any

BIN_RATIO = 1.04
"""Ratio between the bounds of a bin: a latency is known to 2 %."""
SHORTEST_SECONDS = 0.0005
LONGEST_SECONDS = 1000.0

_STEP = log(BIN_RATIO)
MAX_BIN = ceil(log(LONGEST_SECONDS / SHORTEST_SECONDS) / _STEP)
_COUNTS = ("answers", "errors", "refused")
_MAX_COUNT = 1 << 53

Histogram = dict[int, int]
"""Observations by bin."""


def bin_of(seconds: float) -> int:
    """Return the bin of a latency; one out of range is in the first or the last."""
    if seconds <= SHORTEST_SECONDS:
        return 0
    if seconds >= LONGEST_SECONDS:
        return MAX_BIN
    return ceil(log(seconds / SHORTEST_SECONDS) / _STEP)


def seconds_of(place: float) -> float:
    """Return the upper bound of a bin, in seconds; between two bins what lies between."""
    return SHORTEST_SECONDS * exp(place * _STEP)


@dataclass(slots=True)
class RevisionSamples:
    """Counts of one revision. An attempt that failed counts here, though the client had its answer
    from another replica."""

    answers: int = 0
    """Requests that were answered well."""
    errors: int = 0
    """Attempts that failed by the replica's fault: 5xx, 429, broken connections, silence, and those
    whose client left before anything came."""
    refused: int = 0
    """Answers that blame the request: 4xx other than 429."""
    ttft: Histogram = field(default_factory=dict)
    """Seconds to the first token of streams, by bin."""
    itl: Histogram = field(default_factory=dict)
    """Seconds between tokens, the mean of each stream, by bin."""

    @property
    def requests(self) -> int:
        """Everything that was counted."""
        return self.answers + self.errors + self.refused

    def add(self, other: RevisionSamples) -> None:
        """Add what another process has counted."""
        self.answers += other.answers
        self.errors += other.errors
        self.refused += other.refused
        for mine, theirs in ((self.ttft, other.ttft), (self.itl, other.itl)):
            for place, count in theirs.items():
                mine[place] = mine.get(place, 0) + count

    def report(self) -> dict[str, Any]:
        """Return what JSON takes, for `read_samples`."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "ttft": {str(place): count for place, count in sorted(self.ttft.items())},
            "itl": {str(place): count for place, count in sorted(self.itl.items())},
        }


@dataclass(slots=True)
class CanarySamples:
    """Samples of both revisions, counted over the same time."""

    split: str
    """Id of the split that they were counted under."""
    canary: RevisionSamples = field(default_factory=RevisionSamples)
    stable: RevisionSamples = field(default_factory=RevisionSamples)

    def report(self) -> dict[str, Any]:
        """Return what JSON takes, for `read_samples`."""
        return {
            "split": self.split,
            "canary": self.canary.report(),
            "stable": self.stable.report(),
        }


def read_samples(report: object) -> CanarySamples:
    """Return the samples of a report. Raises ValueError for one that is none."""
    if not isinstance(report, Mapping) or not isinstance(report.get("split"), str):
        raise ValueError("samples without a split")
    return CanarySamples(
        report["split"], _revision(report.get("canary")), _revision(report.get("stable"))
    )


def total(split: str, several: Iterable[CanarySamples]) -> CanarySamples:
    """Return the sum of all that were counted under `split`; the others are left out."""
    found = CanarySamples(split)
    for each in several:
        if each.split == split:
            found.canary.add(each.canary)
            found.stable.add(each.stable)
    return found


def _revision(report: object) -> RevisionSamples:
    if not isinstance(report, Mapping):
        raise ValueError("samples without a revision")
    return RevisionSamples(
        answers=_count(report.get("answers")),
        errors=_count(report.get("errors")),
        refused=_count(report.get("refused")),
        ttft=_histogram(report.get("ttft")),
        itl=_histogram(report.get("itl")),
    )


def _histogram(report: object) -> Histogram:
    if not isinstance(report, Mapping) or len(report) > MAX_BIN + 1:
        raise ValueError("samples without a histogram")
    found = {int(place): _count(count) for place, count in report.items()}
    if not all(0 <= place <= MAX_BIN for place in found):
        raise ValueError("a bin that there is not")
    return found


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_COUNT:
        raise ValueError("a count that is none")
    return value
