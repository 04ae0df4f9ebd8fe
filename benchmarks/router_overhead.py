"""Cost of the router: CPU time of its process a request and a chunk, beside other routers.

    make compile    # the router's modules; without it their sources are measured
    python benchmarks/router_overhead.py [--against smg,vllm-router] [--save]
        [--policies kv_aware,round_robin] [--seconds 4] [--repeat 5] [--only 2kb,chunk]
        [--before CHECKOUT]

Each router runs pinned to one core, with its index filled and its log and metrics on; four mock
replicas and the load, both native, run on the other cores. One round measures every router with
every work, the next round again, so that they share what else the machine does. CPU time is the
scheduler's account of the process (/proc/PID/schedstat): it holds on a busy machine too, latencies
and requests a second do not. The work:

- 2kb, 64kb, 400kb: unary chat requests with 500-byte answers, 64, 32 and 8 in flight; half of each
  prompt is one of eight system texts, and the router knows them all
- chunk: 500 streams at once of 200 events of 220 bytes, as fast as the mock writes them
- paced: 64 streams at 20 ms an event, so that no two share a read
- latency: 2 KB unary, 1 in flight; what the router adds to the mock's own

`ratio_to_smg` in the results is this router's CPU time with its first policy over smg's with its
own cache_aware one. Other routers are installed from PyPI into an environment of their own, under
a temporary directory, or taken from `--programs DIR`. `--before CHECKOUT` measures the router of
another checkout of this repository, with its own .venv, in the same rounds: the geometric mean of
the rounds' ratios and its 95 % confidence interval (Student's t over their logarithms).
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import string
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from common import Figure, Report, Table, free_port, warn_if_busy
from router_tools import (
    RIVALS,
    Cores,
    Measured,
    Native,
    Router,
    build_native,
    chat_body,
    install_rivals,
    kvasir_router,
    process,
    rival,
    run_load,
    write_requests,
)

from kvasir_router import compiled

REPLICAS = 4
SYSTEM_TEXTS = 8
DIRECT = "direct"
BEFORE = "before"
STUDENT_T = {2: 12.71, 3: 4.30, 5: 2.78, 10: 2.26, 15: 2.14, 20: 2.09, 30: 2.05}
"""97.5 % quantile of Student's t for as many runs (one degree of freedom less)."""


@dataclass(frozen=True)
class Workload:
    """Kind of load. `interval_ms` between the events of a stream; None: unary."""

    name: str
    in_flight: int
    prompt_bytes: int
    prompts: int
    unit: str = "answers"
    interval_ms: int | None = None
    goal: str = ""
    """Goal for the ratio to smg."""


WORKLOADS = (
    Workload("2kb", 64, 1_900, 256, goal="<= 0.28"),
    Workload("64kb", 32, 65_000, 128, goal="<= 0.28"),
    Workload("400kb", 8, 409_000, 32, goal="<= 0.45"),
    Workload("chunk", 500, 1_900, 256, "events", 0, goal="<= 0.45"),
    Workload("paced", 64, 1_900, 256, "events", 20),
    Workload("latency", 1, 1_900, 256),
)


@dataclass
class Runs:
    """All that was measured: by work, then router, one a round."""

    by_workload: dict[str, dict[str, list[Measured]]] = field(default_factory=dict)

    def add(self, work: Workload, router: str, measured: Measured) -> None:
        self.by_workload.setdefault(work.name, {}).setdefault(router, []).append(measured)

    def cpu_us(self, work: Workload, router: str) -> list[float]:
        return [run.cpu_us(work.unit) for run in self.by_workload[work.name].get(router, [])]

    def ratios(self, work: Workload, router: str, other: str) -> list[float]:
        """Return the ratios of CPU time between two routers, round by round."""
        pairs = zip(self.cpu_us(work, router), self.cpu_us(work, other), strict=False)
        return [ours / theirs for ours, theirs in pairs]

    def mean_ratio(self, work: Workload, router: str, other: str) -> tuple[float, float, float]:
        """Return the geometric mean of `ratios` and the ends of its 95 % confidence interval."""
        logs = [math.log(ratio) for ratio in self.ratios(work, router, other)]
        mean = statistics.mean(logs)
        quantile = STUDENT_T[max(count for count in STUDENT_T if count <= max(len(logs), 2))]
        error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        return tuple(math.exp(mean + side * quantile * error) for side in (0, -1, 1))  # type: ignore[return-value]

    def added_us(self, router: str, quantile: str) -> list[float]:
        """Latency over the mock's own, round by round."""
        runs = self.by_workload["latency"]
        pairs = zip(runs[router], runs[DIRECT], strict=True)
        return [a.counts["whole"][quantile] - b.counts["whole"][quantile] for a, b in pairs]


def text(source: random.Random, size: int) -> str:
    """Words that do not repeat."""
    letters = string.ascii_lowercase + "    "
    return "".join(source.choices(letters, k=size))


def write_workload(path: Path, work: Workload, source: random.Random) -> None:
    systems = [text(source, work.prompt_bytes // 2) for _ in range(SYSTEM_TEXTS)]
    question = work.prompt_bytes - work.prompt_bytes // 2
    stream = {} if work.interval_ms is None else {"stream": True, "seed": work.interval_ms}
    bodies = (
        chat_body(systems[i % SYSTEM_TEXTS] + text(source, question), **stream, max_tokens=200)
        for i in range(work.prompts)
    )
    write_requests(path, bodies)


def measure(
    folder: Path,
    native: Native,
    routers: Sequence[Router],
    works: Sequence[Workload],
    options: Options,
) -> Runs:
    cores, runs, source = Cores.split(), Runs(), random.Random(1)
    for work in works:
        write_workload(folder / work.name, work, source)
    for round_ in range(options.repeat):
        for work in works:
            # Whoever comes second finds the machine as the first left it: they take turns.
            for router in routers if round_ % 2 else reversed(routers):
                if router.name == DIRECT and work.name != "latency":
                    continue
                warmup = options.warmup if round_ == 0 else 1.0
                measured = run_load(
                    native,
                    cores,
                    router.port,
                    folder / work.name,
                    in_flight=work.in_flight,
                    warmup=warmup,
                    seconds=options.seconds,
                    pid=router.pid,
                )
                runs.add(work, router.name, measured)
                show(work, router, measured)
    return runs


def show(work: Workload, router: Router, run: Measured) -> None:
    rate = run.counts[work.unit] / run.wall_seconds
    print(
        f"{work.name:8}{router.name:14} {run.cpu_us(work.unit):9.2f} µs, {rate:9.0f}/s, "
        f"its core {run.saturation:4.0%} busy, p50 {run.counts['whole']['p50']:.0f} µs",
        flush=True,
    )


def figures(runs: Runs, works: Sequence[Workload], policies: Sequence[str]) -> list[Figure]:
    """Return the figures of the first policy, with its goals."""
    ours, found = policies[0], []
    for work in works:
        if work.name == "latency":
            continue
        unit = "µs" if work.unit == "answers" else "µs an event"
        found.append(Figure(f"CPU, {work.name}", unit, runs.cpu_us(work, ours)))
        if ratios := runs.ratios(work, ours, "smg"):
            found.append(Figure(f"CPU of smg's, {work.name}", "", ratios, work.goal))
        if ratios := runs.ratios(work, ours, BEFORE):
            found.append(Figure(f"CPU of the other checkout's, {work.name}", "", ratios, "<= 1.05"))
        if "round_robin" in policies and ours != "round_robin":
            goal = "<= 1.3" if work.name in ("2kb", "64kb") else ""
            ratios = runs.ratios(work, ours, "round_robin")
            found.append(Figure(f"CPU of round_robin's, {work.name}", "", ratios, goal))
    if any(work.name == "latency" for work in works):
        for quantile in ("p50", "p99"):
            goal = ""
            if "vllm-router" in runs.by_workload["latency"]:
                theirs = statistics.median(runs.added_us("vllm-router", quantile))
                goal = f"<= {theirs:.0f}"
            added = runs.added_us(ours, quantile)
            found.append(Figure(f"added latency {quantile}", "µs", added, goal, digits=0))
    return found


def table(runs: Runs, works: Sequence[Workload], routers: Sequence[str]) -> Table:
    """Every router, every work."""
    rows = []
    for name in routers:
        if name == DIRECT:
            continue
        row = [name]
        for work in works:
            if work.name == "latency":
                row += [f"{statistics.median(runs.added_us(name, q)):.0f}" for q in ("p50", "p99")]
            else:
                row.append(f"{statistics.median(runs.cpu_us(work, name)):.1f}")
        rows.append(row)
    columns = ["router"]
    for work in works:
        columns += ["added p50", "added p99"] if work.name == "latency" else [work.name]
    return Table("Median CPU µs a request (a chunk), and added latency in µs", columns, rows)


def before_table(runs: Runs, works: Sequence[Workload], ours: str) -> Table:
    """CPU time over the other checkout's, by work."""
    rows = []
    for work in works:
        if work.name != "latency":
            mean, low, high = runs.mean_ratio(work, ours, BEFORE)
            rows.append([work.name, f"{mean:.3f}", f"{low:.3f} to {high:.3f}"])
    columns = ["work", "geometric mean", "95 % confidence interval"]
    return Table("CPU time over the other checkout's", columns, rows)


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    policies: list[str]
    against: list[str]
    only: list[str]
    seconds: float
    warmup: float
    repeat: int
    programs: Path | None
    router_options: list[str]
    before: Path | None
    save: bool


def run(options: Options, folder: Path) -> None:
    works = [work for work in WORKLOADS if not options.only or work.name in options.only]
    native, cores = build_native(folder), Cores.split()
    programs = options.programs
    if options.against and programs is None:
        programs = install_rivals(folder, options.against)
    ports = [free_port() for _ in range(REPLICAS)]
    with ExitStack() as stack:
        mock = stack.enter_context(process(native.mock, *map(str, ports), cpus=cores.others))
        time.sleep(0.2)
        routers = [
            stack.enter_context(
                kvasir_router(
                    folder, ports, cores, policy, "--policy", policy, *options.router_options
                )
            )
            for policy in options.policies
        ]
        if options.before:
            policy = ["--policy", options.policies[0]]
            routers.append(
                stack.enter_context(
                    kvasir_router(folder, ports, cores, BEFORE, *policy, checkout=options.before)
                )
            )
        for name in options.against:
            assert programs is not None
            routers.append(stack.enter_context(rival(programs, name, ports, cores)))
        routers.append(Router(DIRECT, ports[0], mock.pid))
        runs = measure(folder, native, routers, works, options)
    publish(runs, works, [router.name for router in routers], options)


def publish(runs: Runs, works: Sequence[Workload], routers: list[str], options: Options) -> None:
    ratios = {}
    if "smg" in options.against:
        for work in works:
            if work.goal:
                found = runs.ratios(work, options.policies[0], "smg")
                ratios[work.name] = round(statistics.median(found), 3)
    versions = ", ".join(f"{name} {RIVALS[name]}" for name in options.against)
    form = "compiled" if compiled.in_use() else "not compiled (`make compile`)"
    Report(
        name="router_overhead",
        title="The router's overhead",
        work=(
            f"CPU time of one router process on one core with {REPLICAS} mock replicas, access log "
            f"and metrics on, {form}, policy {options.policies[0]}; beside others in turn"
            f"{f' ({versions}, cache_aware)' if versions else ''}."
        ),
        figures=figures(runs, works, options.policies),
        tables=[
            table(runs, works, routers),
            *([before_table(runs, works, options.policies[0])] if options.before else []),
        ],
        packages=("uvloop", "httptools", "msgspec"),
        values={"ratio_to_smg": ratios},
        folder="",
    ).publish(save=options.save)


def main() -> None:
    """Parse, run, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policies", default="kv_aware,round_robin", help="the first is compared")
    parser.add_argument("--against", default="", help=f"of {', '.join(RIVALS)}, with commas")
    parser.add_argument("--only", default="", help="works, with commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--warmup", type=float, default=4.0, help="of the first round")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--programs", type=Path, help="folder that holds the other routers")
    parser.add_argument("--router-options", default="", help="as one string, after a space")
    parser.add_argument("--before", type=Path, help="another checkout, installed and compiled")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    warn_if_busy()
    options = Options(
        policies=given.policies.split(","),
        against=given.against.split(",") if given.against else [],
        only=given.only.split(",") if given.only else [],
        seconds=given.seconds,
        warmup=given.warmup,
        repeat=given.repeat,
        programs=given.programs,
        router_options=given.router_options.split(),
        before=given.before and given.before.resolve(),
        save=given.save,
    )
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
