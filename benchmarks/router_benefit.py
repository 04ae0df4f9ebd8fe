"""Benefit of choosing a replica by its KV cache: output and first tokens, policy by policy.

    python benchmarks/router_benefit.py [--policies round_robin,least_load,approximate,exact]
        [--works capacity,chat,agent,nosharing] [--stages below,knee,past]
        [--scale 4] [--speed 1] [--at-once 1] [--virtual] [--save]

Eight engines with `--device sim` stand for llm-d's pods: Qwen3-32B on two GPUs, 15,900 prompt
tokens a second and 307,328 tokens of KV cache each; `sim_fleet.py` says how tokens are scaled
(`--scale`) and clocks run faster (`--speed`).
Figures are given in real tokens and seconds. Each policy starts with a fresh fleet, and each stage
follows the one before it; the works are in `benefit_workloads.py`.

`round_robin`, `least_load`, ... are the router's policies; `approximate` is kv_aware that hears no
block events, `exact` kv_aware that does. A stage is below the knee, at it or past it for a policy
that finds every prefix; round_robin has its knee below. Printed with each stage is how busy the
machine was: above 90 % the figures say more of the machine than of the policy. With `--virtual`
all is one process in virtual time (`virtual_fleet.py`), on any machine, and the same every time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import uvloop
from benefit_workloads import WORKLOADS, Workload
from common import Figure, Report, Table, free_port, wait_for, warn_if_busy
from router_tools import FORM, process, router_command
from scaled_router import divide
from sim_fleet import SECRET, Engine, Scale, Words, sim_fleet
from stream_load import Load, Stage, arrive, run_stage
from virtual_clock import VirtualLoop, run_virtual
from virtual_fleet import VirtualLoad, VirtualRouter

from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.policy.registry import make_policy

REPLICAS = 8
KV_TOKENS = 307_328
POLICIES = "round_robin,least_load,prefix_hash,approximate,exact"
STAGES = ("below", "knee", "past")
PATIENCE = ("--queue-timeout", "3600", "--max-waiting", "100000")
"""Nobody is turned away: a policy that saturates pays with time."""
VIRTUALLY = (
    " In virtual time: scheduler, KV manager, policy, indexes and queue are real, processes "
    "and HTTP are not there."
)
KV_AWARE = {"approximate": False, "exact": True}
"""Policies that are kv_aware, and whether they hear of block events."""


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    policies: list[str]
    works: list[str]
    stages: list[str]
    scale: Scale
    stage_seconds: float
    lead_seconds: float
    warmup_seconds: float
    at_once: int
    virtual: bool
    save: bool


async def measure(
    work: Workload, load: Load, pid: int, words: Words, options: Options
) -> list[Stage]:
    arrivals = work.sessions(options.scale, words, random.Random(3))
    await arrive(load, arrivals, work.warmup_rate, options.warmup_seconds, random.Random(7))
    lead, counted = options.lead_seconds, options.stage_seconds
    stages = [
        await run_stage(load, arrivals, work.rates[name], lead, counted, pid)
        for name in options.stages
    ]
    for task in list(load.running):
        task.cancel()
    await asyncio.gather(*load.running, return_exceptions=True)
    return stages


def run_policy(
    folder: Path, policy: str, work: Workload, words: Words, model: Path, options: Options
) -> list[Stage]:
    """A fresh fleet, a router, and every stage."""
    folder.mkdir()
    with sim_fleet(folder, model, options.scale, replicas=REPLICAS, kv_tokens=KV_TOKENS) as engines:
        config, port = folder / "fleet.json", free_port()
        config.write_text(json.dumps(_discovery(engines, KV_AWARE.get(policy, True))))
        name = "kv_aware" if policy in KV_AWARE else policy
        command, environment = router_command(
            config, port, "--policy", name, *PATIENCE, tokens=options.scale.tokens
        )
        environment["KVASIR_FLEET_SECRET"] = SECRET
        cpus = os.sched_getaffinity(0)
        with process(*command, cpus=cpus, environment=environment) as router:
            wait_for(
                f"http://127.0.0.1:{port}/ready",
                within=30,
                process_alive=lambda: router.poll() is None,
            )
            load = Load(port, options.scale)
            return uvloop.run(measure(work, load, router.pid, words, options))


def run_policy_virtually(
    policy: str, work: Workload, words: Words, options: Options
) -> list[Stage]:
    """The same in virtual time, in this process."""
    scaled = divide(options.scale.tokens)
    spec = PolicySpec("kv_aware" if policy in KV_AWARE else policy)

    def make(loop: VirtualLoop) -> VirtualLoad:
        hears = KV_AWARE.get(policy, True)
        made = make_policy(spec, scaled)
        router = VirtualRouter(loop, made, options.scale, REPLICAS, KV_TOKENS, hears=hears)
        return VirtualLoad(router, options.scale, words)

    async def stages(load: VirtualLoad) -> list[Stage]:
        found = await measure(work, load, os.getpid(), words, options)
        for stage in found:
            stage.machine = stage.router = 0.0  # it is not the machine's time
        return found

    made: list[Stage] = run_virtual(stages, make)
    return made


def _discovery(engines: Sequence[Engine], with_events: bool) -> dict[str, Any]:
    replicas = [engine.entry(i, with_events) for i, engine in enumerate(engines)]
    return {"models": [{"name": "bench", "replicas": replicas}]}


@dataclass(frozen=True)
class Result:
    """Figures of one stage, in real units."""

    output: float
    """Tokens a second."""
    ttft: dict[str, float]
    stage: Stage

    @classmethod
    def of(cls, stage: Stage, scale: Scale) -> Result:
        waits = sorted((call.first - call.started) * scale.speed for call in stage.calls)
        cuts = statistics.quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else [0.0]
        at = {"p50": cuts[len(cuts) // 2], "p90": cuts[-10], "p99": cuts[-1]} if waits else {}
        output = stage.tokens * scale.tokens / stage.seconds / scale.speed
        return cls(output, at, stage)

    def row(self) -> list[str]:
        stage = self.stage
        return [
            f"{self.output:,.0f}",
            *(f"{self.ttft[name]:.2f}" for name in ("p50", "p90", "p99")),
            str(len(stage.calls)),
            str(stage.unfinished),
            str(stage.lost),
            f"{stage.machine:.0%}",
            f"{stage.router:.0%}",
        ]


COLUMNS = ["policy", "stage", "rate", "output tokens/s", "TTFT p50 s", "p90", "p99", "requests"]
COLUMNS += ["without first token", "lost", "machine busy", "router's core"]


def run(options: Options, folder: Path) -> None:
    words = Words(options.scale)
    model = folder / "model"
    words.write_model(model, max_tokens=32_768)
    results: dict[tuple[str, str, str], Result] = {}
    tables = []
    for work in (work for work in WORKLOADS if work.name in options.works):
        rows = []
        # Processes of their own, so that one's load is never late because of another's
        with ProcessPoolExecutor(
            options.at_once, get_context("spawn"), max_tasks_per_child=1
        ) as pool:
            running = {
                policy: pool.submit(run_policy_virtually, policy, work, words, options)
                if options.virtual
                else pool.submit(
                    run_policy,
                    *(folder / f"{work.name}-{policy}", policy, work, words, model, options),
                )
                for policy in options.policies
            }
        for policy, stages in running.items():
            for name, stage in zip(options.stages, stages.result(), strict=True):
                result = results[work.name, policy, name] = Result.of(stage, options.scale)
                rows.append([policy, name, f"{work.rates[name]:g}/s", *result.row()])
                print(work.name, *rows[-1], sep="  ", flush=True)
        tables.append(Table(work.name, COLUMNS, rows))
    publish(results, tables, options)


@dataclass(frozen=True)
class Comparison:
    """One policy's figure over another's, with a goal."""

    work: str
    stage: str
    policy: str
    other: str
    what: str
    """`output`, or a percentile of the TTFT."""
    goal: str = ""

    def figure(self, results: dict[tuple[str, str, str], Result]) -> Figure | None:
        """None when one of both was not measured."""
        mine = results.get((self.work, self.policy, self.stage))
        theirs = results.get((self.work, self.other, self.stage))
        if mine is None or theirs is None or not mine.ttft or not theirs.ttft:
            return None
        ratio = self._of(mine) / max(self._of(theirs), 1e-9)
        what = self.what if self.what == "output" else f"TTFT {self.what}"
        name = f"{self.work}, {self.stage}: {what} of {self.policy} / {self.other}"
        return Figure(name, "", [ratio], self.goal, digits=3)

    def _of(self, result: Result) -> float:
        return result.output if self.what == "output" else result.ttft[self.what]


COMPARISONS = (
    Comparison("capacity", "knee", "exact", "round_robin", "output", ">= 1.9"),
    Comparison("capacity", "knee", "exact", "round_robin", "p90", "<= 0.033"),
    *(
        Comparison(work, "knee", "approximate", "exact", "output", ">= 0.9")
        for work in ("capacity", "chat", "agent")
    ),
    *(
        Comparison(work, "knee", "exact", "round_robin", what)
        for work in ("chat", "agent")
        for what in ("output", "p90")
    ),
    *(
        Comparison("nosharing", stage, "exact", "least_load", "p99", "<= 1.05")
        for stage in ("knee", "past")
    ),
)


def publish(
    results: dict[tuple[str, str, str], Result], tables: list[Table], options: Options
) -> None:
    figures = [found for each in COMPARISONS if (found := each.figure(results)) is not None]
    scale = options.scale
    form = "" if options.virtual else f", {FORM}"
    Report(
        name="router_benefit" if len(tables) > 1 else f"router_benefit_{tables[0].title}",
        title="What the choice of a replica is worth",
        work=(
            f"{REPLICAS} simulated engines (as llm-d's pods, {KV_TOKENS:,} tokens of KV cache "
            f"each) behind one router{form}; one simulated token stands for {scale.tokens}, "
            f"clocks {scale.speed:g} times as fast, stages of {options.stage_seconds:g} s after "
            f"{options.lead_seconds:g} s of the same rate; figures in real tokens and seconds. A "
            "request without a first token when its stage and half as long again are over counts "
            f"with that time.{VIRTUALLY if options.virtual else ''}"
        ),
        figures=figures,
        tables=tables,
        packages=("uvloop", "msgspec"),
        folder="",
    ).publish(save=options.save)


def main() -> None:
    """Parse, run, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--works", default=",".join(work.name for work in WORKLOADS))
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--scale", type=int, default=4, help="real tokens a simulated one is")
    parser.add_argument("--speed", type=float, default=1.0, help="of all clocks")
    parser.add_argument("--stage-seconds", type=float, default=40.0, help="real seconds")
    parser.add_argument("--lead-seconds", type=float, default=40.0, help="before each stage counts")
    parser.add_argument("--warmup-seconds", type=float, default=50.0, help="real seconds")
    parser.add_argument("--at-once", type=int, default=1, help="policies, each with its own fleet")
    parser.add_argument("--virtual", action="store_true", help="in virtual time, on any machine")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    warn_if_busy()
    options = Options(
        policies=given.policies.split(","),
        works=given.works.split(","),
        stages=given.stages.split(","),
        scale=Scale(given.scale, given.speed),
        stage_seconds=given.stage_seconds,
        lead_seconds=given.lead_seconds,
        warmup_seconds=given.warmup_seconds,
        at_once=given.at_once,
        virtual=given.virtual,
        save=given.save,
    )
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
