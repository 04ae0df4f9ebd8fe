"""Rows of the attacks' table, and what must hold in each."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

MAX_GROWTH = 0.050
"""Seconds by which an attack may raise the well-behaved client's p99."""
MAX_NOISY_GROWTH = 1.0
"""The same on a machine that does other work."""
MAX_MEMORY_GROWTH = 0.10
"""Part by which memory may have grown when the attacks are over."""


@dataclass
class Row:
    """One attack on one target."""

    target: str
    attack: str
    sent: int = 0
    """Requests or connections of the attack."""
    answers: int = 0
    """Good answers of the well-behaved client meanwhile."""
    lost: int = 0
    p99: float = 0.0
    """The 99th percentile of its answers, in seconds."""
    baseline_p99: float = 0.0
    equal_p99: float | None = None
    """The same beside processes that take as much CPU time as the attack and the target did, where
    it was measured."""
    load: float = 0.0
    """Seconds of CPU time that the target took a second."""
    note: str = ""
    failed: list[str] = field(default_factory=list)
    """Conditions that did not hold."""

    def expect(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.failed.append(what)

    def judge(
        self, seconds: list[float], problems: list[str], baseline: float, quiet: bool
    ) -> None:
        """Take the client's answers, and judge them by those without an attack; `quiet`: on a
        machine that does nothing else."""
        self.answers, self.lost = len(seconds), len(problems)
        self.p99, self.baseline_p99 = percentile(seconds, 0.99), baseline
        self.expect(not problems, f"{len(problems)} answers lost: {sorted(set(problems))[:3]}")
        self.expect(bool(seconds), "the client got no answer")
        grown = self.p99 - baseline
        limit = MAX_GROWTH if quiet else MAX_NOISY_GROWTH
        self.expect(grown <= limit, f"p99 grew by {grown * 1000:.0f} ms")


def percentile(values: list[float], part: float) -> float:
    """Return the value below which `part` of the values are; 0 without any."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


def table(rows: list[Row]) -> str:
    """Return the table of the rows, for people."""
    p99 = "p99 without (, beside equal load), with"
    lines = [f"{'target':18} {'attack':34} {'sent':>9} {'answers':>8} {'lost':>5} {p99:>39}"]
    for row in rows:
        times = [each for each in (row.baseline_p99, row.equal_p99, row.p99) if each is not None]
        p99 = " -> ".join(f"{each * 1000:.0f}" for each in times) + " ms" if row.answers else ""
        failed = "  FAILED " + "; ".join(row.failed) if row.failed else ""
        lines.append(
            f"{row.target:18} {row.attack:34} {row.sent:9,} {row.answers:8,} {row.lost:5}"
            f" {p99:>39}  {row.note}{failed}"
        )
    return "\n".join(lines)


def save(rows: list[Row], path: Path, **about: object) -> None:
    """Write the rows as JSON."""
    content = {**about, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n")
