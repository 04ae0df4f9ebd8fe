"""A thousand streams at once through one router on one core.

    python benchmarks/router_streams.py [--streams 1000] [--seconds 20] [--policy kv_aware] [--save]

A native mock writes an event of 220 bytes to every stream each 20 ms, 200 to a stream; the load,
native too, begins a new stream as soon as one ends. The router has one core, mock and load the
others. The same load without the router says what machine, mock and load take themselves: added is
what is over that. A stream is lost when it ends without its last event.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from common import Figure, Report, free_port, warn_if_busy
from router_tools import (
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
    through: list[Measured] = []
    direct: list[Measured] = []
    with process(native.mock, *map(str, ports), cpus=cores.others) as mock:
        time.sleep(0.2)
        choice = ("--policy", options.policy)
        with kvasir_router(folder, ports, cores, options.policy, *choice) as router:
            for _ in range(options.repeat):
                for runs, port, pid in (
                    (through, router.port, router.pid),
                    (direct, ports[0], mock.pid),
                ):
                    runs.append(
                        run_load(
                            native,
                            cores,
                            port,
                            requests,
                            in_flight=options.streams,
                            warmup=2 * EVENTS * INTERVAL_MS / 1000,
                            seconds=options.seconds,
                            pid=pid,
                            lossless=False,
                        )
                    )
            memory = resident_mb(router.pid)
    publish(through, direct, memory, options)


def publish(
    through: list[Measured], direct: list[Measured], memory: float, options: argparse.Namespace
) -> None:
    def added(name: str, quantile: str) -> list[float]:
        pairs = zip(through, direct, strict=True)
        return [(a.counts[name][quantile] - b.counts[name][quantile]) / 1000 for a, b in pairs]

    lost = [float(run.counts["errors"]) for run in through]
    rates = [run.counts["events"] / run.wall_seconds for run in through]
    Report(
        name="router_streams",
        title="A thousand streams through one core",
        work=(
            f"{options.streams} streams at once, an event each {INTERVAL_MS} ms, policy "
            f"{options.policy}; added is what is over the same load without the router."
        ),
        figures=[
            Figure("streams lost", "", lost, "<= 0", digits=0),
            Figure("added TTFT p99", "ms", added("first_byte", "p99"), "<= 20"),
            Figure("added TTFT p50", "ms", added("first_byte", "p50")),
            Figure("added time between tokens p99", "ms", added("gap", "p99"), "<= 5"),
            Figure("added time between tokens p50", "ms", added("gap", "p50")),
            Figure("resident memory", "MB", [memory], "<= 150", digits=0),
            Figure("events a second", "", rates, digits=0),
            Figure("CPU an event", "µs", [run.cpu_us("events") for run in through]),
            Figure("its core busy", "", [run.saturation for run in through]),
        ],
        packages=("uvloop", "httptools", "msgspec"),
        folder="",
    ).publish(save=options.save)


if __name__ == "__main__":
    main()
