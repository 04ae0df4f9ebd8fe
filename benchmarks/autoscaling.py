"""GPU hours and missed targets of autoscalers over simulated days, with up to 1,000 replicas.

    python benchmarks/autoscaling.py [--traces bursty,...] [--seeds 101,102] [--save]

Ours is the very code of the operator (`kvasir_operator.scaling`), asked every 5 s; the others are
in `scaling_rivals.py`, with their sources; the fleet in `scaling_fleet.py`, the days in
`scaling_traces.py`. Each controller plays each day with each target of its grid; its GPU hours at
a share of requests that met both targets (TTFT and ITL) are those of its best target, between two
targets by a straight line. What nobody's targets reach is said to be never reached. All is computed
in virtual time: no figure depends on the machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise, product
from typing import NamedTuple

from common import Figure, Report, Table
from scaling_fleet import Fleet, Scaler, Slo, play
from scaling_rivals import MAX_REPLICAS, MIN_REPLICAS, Hpa, Keda, Ours
from scaling_traces import TRACES, TUNED

from kvasir_engine.sim.latency_model import SpeedProfile

PROFILE = "h200-llama-3.1-8b-bf16"
OUTPUT, COLD_START = 300.0, 120.0
LEVELS = (0.9, 0.95, 0.98, 0.99)
"""Shares of requests that meet both targets, at which GPU hours are compared."""
SOON = 15
"""Seconds of stabilisation downwards, in place of 300: fewer replicas as soon as fewer do."""
CONCURRENCY = (22.0, 26.0, 30.0, 38.0)
QUEUE = (0.01, 1.0)
OURS, HPA = f"Kvasir, {SOON} s", "HPA, 300 s"


def _ours(target: float, seconds: int) -> Scaler:
    behavior = {"scaleDown": {"stabilizationSeconds": seconds}}
    return Ours(metric="concurrency", target=int(target), behavior=behavior)


CONTROLLERS: dict[str, tuple[tuple[float, ...], Callable[[float], Scaler]]] = {
    OURS: (CONCURRENCY, lambda target: _ours(target, SOON)),
    "Kvasir, 300 s": (CONCURRENCY, lambda target: _ours(target, 300)),
    HPA: (CONCURRENCY, lambda target: Hpa("concurrency", target)),
    f"HPA, {SOON} s": (CONCURRENCY, lambda target: Hpa("concurrency", target, SOON)),
    "KEDA, queue": (QUEUE, Keda),
}
"""Controllers by name, each with the targets of its grid."""


class Point(NamedTuple):
    """One day of one controller with one target."""

    trace: str
    seed: int
    controller: str
    target: float
    gpu_hours: float
    attained: float
    late: float
    """Share of requests whose first token was late."""
    slow: float
    most: int


def _play(day: tuple[str, int, str, float]) -> Point:
    trace, seed, controller, target = day
    profile = SpeedProfile.load(PROFILE)
    slo = Slo()
    fleet = Fleet(profile, 100, output=OUTPUT, cold_start=COLD_START, seed=seed, slo=slo)
    found = play(fleet, TRACES[trace](seed), CONTROLLERS[controller][1](target))
    late, slow = found.late / found.requests, found.slow / found.requests
    return Point(*day, found.gpu_hours, found.attained, late, slow, found.most)


def hours_at(level: float, points: list[Point]) -> float | None:
    """Return the least GPU hours of one day at which `level` of its requests meet their targets;
    None if none of the points does."""
    found = [each.gpu_hours for each in points if each.attained >= level]
    ordered = sorted(points, key=lambda it: it.target)
    for one, other in pairwise(ordered):
        low, high = sorted((one, other), key=lambda it: it.attained)
        if low.attained < level <= high.attained:
            part = (level - low.attained) / (high.attained - low.attained)
            found.append(low.gpu_hours + part * (high.gpu_hours - low.gpu_hours))
    return min(found, default=None)


class Study:
    """All days of all controllers."""

    def __init__(self, points: list[Point]) -> None:
        self._points = points
        self.seeds = sorted({each.seed for each in points})
        self.traces = list(dict.fromkeys(each.trace for each in points))

    def hours(self, trace: str, controller: str, level: float) -> list[float | None]:
        """GPU hours at `level`, seed by seed."""
        days = [
            [it for it in self._points if it[:3] == (trace, seed, controller)]
            for seed in self.seeds
        ]
        return [hours_at(level, day) for day in days if day]

    def figures(self) -> list[Figure]:
        """GPU hours of ours by those of the HPA, where both reach the level."""
        made = []
        for trace, level in product(self.traces, LEVELS):
            pairs = zip(self.hours(trace, OURS, level), self.hours(trace, HPA, level), strict=True)
            runs = [ours / hpa for ours, hpa in pairs if ours is not None and hpa is not None]
            if runs:
                name = f"{trace}: GPU hours at {level:.0%}, by HPA's"
                made.append(Figure(name, "", runs, "<= 0.8"))
        return made

    def table(self, trace: str) -> Table:
        """GPU hours of all controllers on one trace, the mean of all seeds."""
        rows = []
        for controller in CONTROLLERS:
            cells = []
            for level in LEVELS:
                hours = [it for it in self.hours(trace, controller, level) if it is not None]
                whole = None not in self.hours(trace, controller, level)
                cells.append(f"{statistics.mean(hours):,.0f}" if whole else "never")
            rows.append([controller, *cells])
        columns = ["controller, stabilisation", *(f"{level:.0%}" for level in LEVELS)]
        return Table(f"{trace}: GPU hours by the share of requests that met both", columns, rows)


def main() -> None:
    """Play all days, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument(
        "--seeds", default="101,102", help=f"of the trace {TUNED}; the others take the first alone"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    seeds = [int(each) for each in given.seeds.split(",")]
    days = [
        (trace, seed, controller, target)
        for trace in given.traces.split(",")
        for seed in (seeds if trace == TUNED else seeds[:1])
        for controller, (targets, _) in CONTROLLERS.items()
        for target in targets
    ]
    with ProcessPoolExecutor(given.processes) as pool:
        points = list(pool.map(_play, days))
    study = Study(points)
    slo = Slo()
    Report(
        "autoscaling",
        "Autoscalers over simulated days",
        f"From {MIN_REPLICAS} to {MAX_REPLICAS:,} replicas of Llama-3.1-8B on an H200 (the speed "
        f"profile {PROFILE}), a second as a step of a fluid; a replica takes {COLD_START:.0f} s "
        "to start, half of them between 108 and 133 s, and counts from its order until it has "
        f"drained. Answers have {OUTPUT:.0f} tokens. A request meets its targets with a first "
        f"token within {slo.ttft:g} s and {slo.itl * 1e3:g} ms between tokens. Kvasir and HPA "
        "follow requests in progress, KEDA those that wait; the seconds are those of stabilisation "
        f"downwards. Kvasir was tuned on the trace {TUNED} with another seed.",
        study.figures(),
        [study.table(trace) for trace in study.traces],
        values={"points": [each._asdict() for each in points]},
    ).publish(save=given.save)


if __name__ == "__main__":
    main()
