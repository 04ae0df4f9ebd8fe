"""Cost of the queue: CPU time of the router a request, by how many wait for a replica.

    python benchmarks/router_waiting.py [--waiting 0,500,1000] [--replicas 8,64]
        [--policies kv_aware,round_robin] [--seconds 4] [--repeat 3] [--save]

Native mocks have 256 places in all (`--max-in-flight`) and stream five events in 0.5 s to each
request; the load keeps as many in flight as they take and `--waiting` more, so that each answer
makes room for one that waits. Chat requests of 2 KB, half of each prompt one of 150 system texts;
metrics and access log on. The router has one core, mocks and load the others. CPU time is the
scheduler's account of the process.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from common import Figure, Report, free_port, warn_if_busy
from router_overhead import text
from router_tools import (
    FORM,
    Cores,
    Measured,
    build_native,
    chat_body,
    kvasir_router,
    process,
    run_load,
    write_requests,
)

PLACES = 256
EVENTS, INTERVAL_MS = 5, 100
HALF = 950
"""Bytes of a system text, and of a question."""
SYSTEM_TEXTS, PROMPTS = 150, 1200


@dataclass(frozen=True)
class Case:
    """Case to compare."""

    policy: str
    replicas: int
    waiting: int

    def __str__(self) -> str:
        return f"{self.policy}, {self.replicas} replicas, {self.waiting} waiting"


def write_prompts(path: Path) -> None:
    source = random.Random(1)
    systems = [text(source, HALF) for _ in range(SYSTEM_TEXTS)]
    prompts = (source.choice(systems) + text(source, HALF) for _ in range(PROMPTS))
    fields = {"stream": True, "max_tokens": EVENTS, "seed": INTERVAL_MS}
    write_requests(path, [chat_body(prompt, **fields) for prompt in prompts])


def measure(options: argparse.Namespace, folder: Path) -> dict[Case, list[Measured]]:
    """Measure one case after the other, as often as asked for."""
    native, cores = build_native(folder), Cores.split()
    requests = folder / "requests"
    write_prompts(requests)
    ports = [free_port() for _ in range(max(options.replicas))]
    cases = [
        Case(policy, replicas, waiting)
        for policy in options.policies
        for replicas in options.replicas
        for waiting in options.waiting
    ]
    runs: dict[Case, list[Measured]] = {case: [] for case in cases}
    with process(native.mock, *map(str, ports), cpus=cores.others):
        time.sleep(0.2)
        for number, case in enumerate(cases * options.repeat):
            some = ports[: case.replicas]
            bounds = ("--max-in-flight", str(PLACES // case.replicas), "--max-waiting", "4096")
            chosen = ("--policy", case.policy)
            with kvasir_router(folder, some, cores, f"run-{number}", *chosen, *bounds) as router:
                run = run_load(
                    native,
                    cores,
                    router.port,
                    requests,
                    in_flight=PLACES + case.waiting,
                    warmup=2.0,
                    seconds=options.seconds,
                    pid=router.pid,
                )
            runs[case].append(run)
            print(f"{case}: {run.cpu_us('answers'):.1f} us", flush=True)
    return runs


def publish(runs: dict[Case, list[Measured]], options: argparse.Namespace) -> None:
    """CPU time, and what it is of that with the first number of waiting requests."""
    first = options.waiting[0]
    costs = {case: [run.cpu_us("answers") for run in found] for case, found in runs.items()}
    figures = []
    for case, found in costs.items():
        figures.append(Figure(f"CPU, {case}", "µs a request", found))
        if case.waiting != first:
            base = costs[replace(case, waiting=first)]
            ratios = [cost / other for cost, other in zip(found, base, strict=True)]
            figures.append(Figure(f"of that with {first}, {case}", "", ratios))
    Report(
        name="router_waiting",
        title="What the queue costs",
        work=f"2 KB requests to replicas with {PLACES} places in all, and more that wait for one; "
        f"{EVENTS} events each; the router {FORM}.",
        figures=figures,
        packages=("uvloop", "httptools", "msgspec"),
        folder="",
    ).publish(save=options.save)


def main() -> None:
    """Parse, run, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--waiting", type=_numbers, default="0,500,1000")
    parser.add_argument("--replicas", type=_numbers, default="8,64")
    parser.add_argument("--policies", type=lambda names: names.split(","), default="kv_aware")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        publish(measure(options, Path(folder)), options)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
