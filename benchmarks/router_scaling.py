"""Gain of several workers: answers a second and CPU time a request, by the number of workers.

    python benchmarks/router_scaling.py [--workers 1,2,4] [--seconds 4] [--repeat 3] [--save]

Unary chat requests of 2 KB with 500-byte answers from four native mocks, half of each prompt one
of eight system texts, 64 in flight a worker; keys, metrics and access log on, policy kv_aware.
Workers, index process and supervisor share the first cores, one more than workers if there are as
many; mocks and load have the others. CPU time is the scheduler's account of all the router's
processes, and holds on a busy or small machine; answers a second do only where each process has a
core.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from common import Figure, Report, free_port, warn_if_busy
from router_overhead import WORKLOADS, write_workload
from router_tools import (
    FORM,
    Cores,
    Measured,
    Native,
    build_native,
    children,
    cpu_ns,
    kvasir_router,
    process,
    run_load,
)

REPLICAS = 4
WORKLOAD = WORKLOADS[0]


def cores_for(workers: int) -> Cores:
    """Return one core for each worker and one for the index process, if half the machine is
    left."""
    available = sorted(os.sched_getaffinity(0))
    wanted = workers + (workers > 1)
    few = max(1, min(wanted, len(available) // 2))
    return Cores(set(available[:few]), set(available[few:]))


def index_cpu_ns(pid: int) -> int:
    """Return the CPU time of the index process in nanoseconds; 0 without one."""
    for child in children(pid):
        if Path(f"/proc/{child}/comm").read_text().startswith("router-index"):
            return cpu_ns(child)
    return 0


def measure(
    folder: Path, native: Native, ports: list[int], workers: int, seconds: float
) -> tuple[Measured, float]:
    """A run, and the index process's part of the CPU time."""
    cores = cores_for(workers)
    options = ("--workers", str(workers))
    with kvasir_router(folder, ports, cores, f"workers-{workers}", *options) as router:
        time.sleep(1.0)  # until each worker listens
        before = cpu_ns(router.pid), index_cpu_ns(router.pid)
        run = run_load(
            native,
            cores,
            router.port,
            folder / WORKLOAD.name,
            in_flight=WORKLOAD.in_flight * workers,
            warmup=3.0,
            seconds=seconds,
            pid=router.pid,
        )
        after = cpu_ns(router.pid), index_cpu_ns(router.pid)
    return run, (after[1] - before[1]) / (after[0] - before[0])


def main() -> None:
    """Parse, run, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    warn_if_busy()
    counts = [int(count) for count in given.workers.split(",")]
    runs: dict[int, list[tuple[Measured, float]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        native = build_native(folder)
        write_workload(folder / WORKLOAD.name, WORKLOAD, random.Random(1))
        ports = [free_port() for _ in range(REPLICAS)]
        others = cores_for(max(counts)).others
        stack.enter_context(process(native.mock, *map(str, ports), cpus=others))
        time.sleep(0.2)
        for _ in range(given.repeat):
            for count in counts:
                run, part = measure(folder, native, ports, count, given.seconds)
                runs[count].append((run, part))
                rate = run.counts["answers"] / run.wall_seconds
                cpu = run.cpu_us("answers")
                print(f"{count} workers: {rate:.0f}/s, {cpu:.1f} us, index {part:.0%}", flush=True)
    publish(runs, save=given.save)


def publish(runs: dict[int, list[tuple[Measured, float]]], *, save: bool) -> None:
    """Rates beside those of the first number of workers, round by round."""
    first = next(iter(runs))
    rates = {
        count: [run.counts["answers"] / run.wall_seconds for run, _ in found]
        for count, found in runs.items()
    }
    figures = []
    for count, found in runs.items():
        workers = [run.cpu_us("answers") * (1 - part) for run, part in found]
        index = [run.cpu_us("answers") * part for run, part in found]
        figures.append(Figure(f"answers a second, {count} workers", "", rates[count], digits=0))
        if count != first:
            ratios = [one / other for one, other in zip(rates[count], rates[first], strict=True)]
            goal = ">= 1.8" if (first, count) == (1, 2) else ""
            figures.append(Figure(f"of those with {first}, {count} workers", "", ratios, goal))
        figures.append(Figure(f"CPU of workers, {count} workers", "µs a request", workers))
        if count > 1:
            figures.append(Figure(f"CPU of the index, {count} workers", "µs a request", index))
    Report(
        name="router_scaling",
        title="Several workers",
        work=f"Unary 2 KB requests through several workers behind one port, {FORM}.",
        figures=figures,
        folder="",
    ).publish(save=save)


if __name__ == "__main__":
    main()
