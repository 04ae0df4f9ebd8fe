"""Judgement and result file of a soak."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from soaking.load import Counts
from soaking.sampling import FIGURES, Life, Sample
from soaking.trend import Series, Verdict, binned, judge

SMALLEST = {"rss_mib": 1.0, "anonymous_mib": 1.0, "fds": 1.0, "threads": 1.0}
"""Growth that counts; below it memory's own grain begins."""
SMALLEST_OF_GAUGES = {
    "kvasir_num_requests_running": 1.0,
    "kvasir_num_requests_waiting": 1.0,
    "kvasir_kv_cache_blocks_held": 1.0,
    "kvasir_router_stream_transcript_bytes": 16384.0,
    "kvasir_router_body_bytes": 16384.0,
    "kvasir_router_client_connections": 2.0,
    "kvasir_operator_queue_length": 1.0,
}

_CRASHED = {
    128 + number for number in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)
}


@dataclass
class Fault:
    """One fault; times are seconds of the run."""

    name: str
    began: float
    ended: float | None = None
    error: str | None = None


@dataclass
class Findings:
    """All that a run found."""

    counts: Counts
    faults: list[Fault] = field(default_factory=list)
    idle: list[dict[str, Any]] = field(default_factory=list)
    """Pauses of the load: what was not back where it began."""
    defects: list[str] = field(default_factory=list)
    """Whatever else did not hold."""


def trends(by_life: Mapping[Life, Sequence[Sample]], began: float) -> dict[str, dict[str, Any]]:
    """Return the trends of each life that was long enough, by the process's role: each has its
    series, a value a minute."""
    found: dict[str, dict[str, Any]] = {}
    for life, samples in by_life.items():
        judged: dict[str, Any] = {}
        for figure in FIGURES:
            series = [(each.at - began, float(getattr(each, figure))) for each in samples]
            if verdict := judge(series, SMALLEST[figure]):
                judged[figure] = _row(verdict, series)
        if judged:
            found[f"{life.role} {life.pod[:8]}/{life.pid}"] = judged
    return found


def gauge_trends(series: Mapping[tuple[str, str], Series]) -> dict[str, dict[str, Any]]:
    """Return the trends of gauges, (pod, name) each; those that are not to be flat are only
    told."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (pod, name), values in series.items():
        if verdict := judge(values, SMALLEST_OF_GAUGES.get(name, 0.0)):
            found[pod][name] = _row(verdict, values)
            if name not in SMALLEST_OF_GAUGES:
                found[pod][name].pop("flat")
    return dict(found)


def short_lives(by_life: Mapping[Life, Sequence[Sample]]) -> dict[str, dict[str, float]]:
    """Return, by role, how many lives there were and the largest figures that any had."""
    found: dict[str, dict[str, float]] = {}
    for life, samples in by_life.items():
        row = found.setdefault(life.role, {"lives": 0, "longest_seconds": 0.0})
        row["lives"] += 1
        if samples:
            seconds = round(samples[-1].at - samples[0].at, 1)
            row["longest_seconds"] = max(row["longest_seconds"], seconds)
        for figure in FIGURES:
            largest = max((float(getattr(each, figure)) for each in samples), default=0.0)
            row[f"largest_{figure}"] = round(max(largest, row.get(f"largest_{figure}", 0.0)), 1)
    return found


def not_judged(found: Iterable[str], roles: Iterable[str]) -> list[str]:
    """Return, in words, the roles of which no life was long enough for a trend."""
    judged = {name.rpartition(" ")[0] for name in found}
    return [
        f"no life of the {role} was long enough to judge" for role in roles if role not in judged
    ]


def crashes(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return, in words, the containers that ended by a signal of their own, such as SIGSEGV."""
    found = []
    for pod in pods:
        for container in pod["status"].get("containerStatuses", ()):
            for state in (container["state"], container.get("lastState", {})):
                ended = state.get("terminated") or {}
                if ended.get("exitCode") in _CRASHED:
                    found.append(
                        f"{pod['metadata']['name']} ended with {ended['exitCode']}"
                        f" at {ended['finishedAt']}"
                    )
    return found


def growing(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what is not flat, in words."""
    return [
        f"{who}: {name} grows by {row['per_hour']:+.3g} an hour"
        f" ({row['low_per_hour']:.3g} to {row['high_per_hour']:.3g}), over"
        f" {row['minutes']:.0f} minutes by {row['growth']:.3g}, more than {row['allowed']:.3g}"
        for who, rows in found.items()
        for name, row in rows.items()
        if row.get("flat") is False
    ]


def fault_table(faults: Iterable[Fault]) -> dict[str, dict[str, Any]]:
    """Return, by kind, how often it was injected and how long it took at the longest."""
    table: dict[str, dict[str, Any]] = {}
    for fault in faults:
        row = table.setdefault(fault.name, {"times": 0, "longest_seconds": 0.0})
        row["times"] += 1
        seconds = (fault.ended or fault.began) - fault.began
        row["longest_seconds"] = max(row["longest_seconds"], round(seconds, 1))
    return dict(sorted(table.items()))


def problems(findings: Findings, tables: Collection[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return all that makes the soak fail, in words."""
    lost = Counter((each.kind, each.failure) for each in findings.counts.lost)
    return [
        *(f"lost {number}: {kind}: {failure}" for (kind, failure), number in lost.items()),
        *(line for table in tables for line in growing(table)),
        *(f"at rest: {each}" for row in findings.idle for each in row["left"]),
        *(f"{each.name}: {each.error}" for each in findings.faults if each.error),
        *findings.defects,
    ]


def requests(counts: Counts) -> dict[str, Any]:
    """Return the numbers of the load."""
    return {
        "answered": dict(sorted(counts.requests.items())),
        "all": counts.requests.total(),
        "left_by_their_client": counts.left,
        "sent_again_after_a_router_was_killed": counts.retried,
        "lost": [asdict(each) for each in counts.lost],
        "longest_seconds": {kind: round(s, 2) for kind, s in sorted(counts.longest.items())},
    }


def _row(verdict: Verdict, series: Series) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: value if isinstance(value, bool) else round(value, 3)
        for name, value in asdict(verdict).items()
    }
    # A JSON number a minute
    row["by_minute"] = " ".join(f"{value:.6g}" for _, value in binned(series))
    return row
