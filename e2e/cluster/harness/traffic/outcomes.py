"""Outcome of each request, and the counts of a run's steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Literal

Kind = Literal["unary", "stream"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one request that has ended; times are time.monotonic() seconds."""

    kind: Kind
    endpoint: str
    started: float
    ended: float
    failure: str | None


@dataclass
class Step:
    """A named part of a run: what ended during it."""

    name: str
    started: float
    ended: float | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    longest_gap: float = 0.0
    """Seconds: the longest silence in a stream that ended during the step."""

    def silence(self, seconds: float) -> None:
        """A stream had nothing for so long."""
        self.longest_gap = max(self.longest_gap, seconds)

    def count(self, kind: Kind) -> int:
        """Requests of this kind that ended well."""
        return sum(o.kind == kind and o.failure is None for o in self.outcomes)

    def failures(self) -> list[Outcome]:
        """The requests that failed."""
        return [outcome for outcome in self.outcomes if outcome.failure is not None]

    def summary(self) -> dict[str, object]:
        """The step's row of the report."""
        unary = [o.ended - o.started for o in self.outcomes if o.kind == "unary"]
        return {
            "step": self.name,
            "seconds": round((self.ended or self.started) - self.started, 1),
            "unary": self.count("unary"),
            "streams": self.count("stream"),
            "failed": len(self.failures()),
            "slowest_unary_s": round(max(unary, default=0.0), 2),
            "longest_gap_s": round(self.longest_gap, 2),
        }


def table(steps: Iterable[Step]) -> str:
    """The steps as a Markdown table."""
    rows = [step.summary() for step in steps]
    if not rows:
        return ""
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0])]
    lines += [" | ".join(str(value) for value in row.values()) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def failures(steps: Iterable[Step]) -> list[dict[str, object]]:
    """Every failure, with the step in which it ended."""
    return [{"step": step.name, **asdict(o)} for step in steps for o in step.failures()]
