"""A thousand streams at once through one router on one core.

    python benchmarks/router_streams.py [--streams 1000] [--seconds 20] [--policy kv_aware] [--save]

A native mock writes an event of 220 bytes to every stream each 20 ms, 200 to a stream; the load,
native too, begins a new stream as soon as one ends. The router has one core, mock and load the
others. The same load without the router says what machine, mock and load take themselves: added is
what is over that. A stream is lost when it ends without its last event.

Streams begin at times of their own, spread over the four seconds that one takes; and, in runs of
their own, all at the same moment, and so again whenever they end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from common import Figure, Report, free_port, warn_if_busy
from router_tools import (
    FORM,
    Cores,
    Measured,
    build_native,
    chat_body,
    kvasir_router,
    process,
    resident_mb,
    run_load,
    write_requests,
)

REPLICAS = 4
EVENTS = 200
INTERVAL_MS = 20
STREAM_SECONDS = EVENTS * INTERVAL_MS / 1000


@dataclass
class Runs:
    """Measured runs with the router and without it, in turn."""

    name: str
    opening: float
    """Seconds over which the first streams begin."""
    through: list[Measured] = field(default_factory=list)
    direct: list[Measured] = field(default_factory=list)

    def added(self, what: str, quantile: str) -> list[float]:
        """Milliseconds over the load without the router, round by round."""
        pairs = zip(self.through, self.direct, strict=True)
        return [(a.counts[what][quantile] - b.counts[what][quantile]) / 1000 for a, b in pairs]

    def figures(self, goals: tuple[str, str, str]) -> list[Figure]:
        """Return the figures; goals: of streams lost, TTFT p99 and the time between tokens p99."""
        lost = [float(run.counts["errors"]) for run in self.through]
        between = "time between tokens"
        figures = [
            Figure("streams lost", "", lost, goals[0], digits=0),
            Figure("added TTFT p99", "ms", self.added("first_byte", "p99"), goals[1]),
            Figure("added TTFT p50", "ms", self.added("first_byte", "p50")),
            Figure(f"added {between} p99", "ms", self.added("gap", "p99"), goals[2]),
            Figure(f"added {between} p50", "ms", self.added("gap", "p50")),
        ]
        return [replace(figure, name=figure.name + self.name) for figure in figures]


def main() -> None:
    """Parse, run, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--policy", default="kv_aware")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> None:
    native, cores = build_native(folder), Cores.split()
    ports = [free_port() for _ in range(REPLICAS)]
    requests = folder / "requests"
    prompts = (f"stream {number} " + "word " * 300 for number in range(256))
    write_requests(
        requests,
        [chat_body(p, stream=True, max_tokens=EVENTS, seed=INTERVAL_MS) for p in prompts],
    )
    spread, together = Runs("", STREAM_SECONDS), Runs(", all begun at once", 0.0)
    with process(native.mock, *map(str, ports), cpus=cores.others) as mock:
        time.sleep(0.2)
        choice = ("--policy", options.policy)
        with kvasir_router(folder, ports, cores, options.policy, *choice) as router:

            def load(port: int, pid: int, opening: float) -> Measured:
                return run_load(
                    native,
                    cores,
                    port,
                    requests,
                    in_flight=options.streams,
                    warmup=2 * STREAM_SECONDS,
                    seconds=options.seconds,
                    pid=pid,
                    lossless=False,
                    opening=opening,
                )

            for runs in (spread, together) * options.repeat:
                runs.through.append(load(router.port, router.pid, runs.opening))
                runs.direct.append(load(ports[0], mock.pid, runs.opening))
            memory = resident_mb(router.pid)
    publish(spread, together, memory, options)


def publish(spread: Runs, together: Runs, memory: float, options: argparse.Namespace) -> None:
    """The figures of both, with the goals."""
    rates = [run.counts["events"] / run.wall_seconds for run in spread.through]
    Report(
        name="router_streams",
        title="A thousand streams through one core",
        work=(
            f"{options.streams} streams at once, an event each {INTERVAL_MS} ms, policy "
            f"{options.policy}, the router {FORM}; each begins at a time of its own, or all at "
            "once; added is what is over the same load without the router."
        ),
        figures=[
            *spread.figures(("<= 0", "<= 20", "<= 5")),
            Figure("resident memory", "MB", [memory], "<= 150", digits=0),
            Figure("events a second", "", rates, digits=0),
            Figure("CPU an event", "µs", [run.cpu_us("events") for run in spread.through]),
            Figure("its core busy", "", [run.saturation for run in spread.through]),
            *together.figures(("<= 0", "<= 20", "<= 5")),
        ],
        packages=("uvloop", "httptools", "msgspec"),
        folder="",
    ).publish(save=options.save)


if __name__ == "__main__":
    main()
