"""A soak of the full cluster: mixed load, a fault every 20 s, and what grows meanwhile.

    make soak        # an hour; root, a cluster of its own unless one is up
    PYTHONPATH=e2e/cluster:benchmarks python e2e/soak.py [--seconds 3600] [--save FILE]

Lost is every request without its right answer: any status but 200, error event, wrong or missing
token, wrong usage or end. A client sends a request again only if its connection broke within 30 s
of a router's kill -9; nothing else is excused. Processes are sampled every 5 s; one router and one
engine are spared from faults, and operator and API server after a third of the run, so that their
lives are long enough for a slope: RSS, file descriptors and threads must not grow, over the second
half of a life, for sure and by more than their noise. Every ten minutes the load runs dry, and
nothing may be held then: KV blocks, transcripts, bodies, requests in flight. Exits with 1 when
anything of this does not hold, or a container ended by a signal of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import commit, machine
from soaking import report
from soaking.cluster_faults import KINDS, Faults, insist, write_keys
from soaking.injection import Injection
from soaking.load import Keys, Load, Plan
from soaking.questions import pool, right_answers
from soaking.sampling import gauges
from soaking.schedule import Schedule
from soaking.watching import Watch, metrics_url

from harness.cluster import Cluster, cluster_up, down_afterwards
from harness.commands import wait_for
from harness.errors import HarnessError
from harness.places import run_directory
from harness.proof.deployment import Deployment
from harness.proof.release import ROUTER_NODE, Release, small_values
from harness.proof.steps import OTHER_TAG
from kvasir_engine.sim.latency_model import SpeedProfile

MODEL = "builtin://kvasir-tiny"
BUSY, STEADY = "busy", "steady"
REST_SECONDS = 60.0
"""Seconds without load before and after, for memory at rest."""
SLOW, FAST = "slow", "h200-llama-3.1-8b-bf16"
"""Speed profiles: streams of `busy` live through faults, and `steady` computes much."""
FILLING_PROMPTS = 12_000
"""Prompts to `steady` before the first fault: all that it keeps is full then, its 55,368 KV blocks
and the last 10,000 batches of its events, so that what grows after that has no end."""
ROLES = ("router", "engine core", "engine api", "engine parent", "operator")
"""Processes; one life of each has to be long enough to be judged."""
JUDGED_SECONDS = 3000.0
"""Only a run as long as this has such lives of all."""


class Soak:
    """One run on a cluster with a release and two deployments: `busy`, which all happens to, and
    `steady`, which is left alone."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.options = options
        self.release = Release(cluster.kubectl)
        self.namespace = cluster.control_plane.namespace("soak")
        self.deployments = {
            name: Deployment(cluster.kubectl, self.namespace, name) for name in (BUSY, STEADY)
        }
        self.keys = Keys([f"kv-soak-lasting-{n}-{'x' * 16}" for n in range(3)], "kv-soak-0" * 3)
        self.rest: dict[str, dict[str, dict[str, float]]] = {}
        self.commit = commit()

    def install(self) -> None:
        """Install the release and both deployments; returns when all is Ready."""
        for node in self.cluster.nodes:
            if OTHER_TAG not in node.images():
                node.tag_image("localhost/kvasir/engine-sim:dev", OTHER_TAG)
        self.release.install(small_values())
        write_keys(self.release, self.keys.all())
        self.deployments[BUSY].apply({**_spec(SLOW), "replicas": 3})
        pinned = {"podTemplate": {"nodeSelector": ROUTER_NODE}}
        self.deployments[STEADY].apply({**_spec(FAST), **pinned})
        for deployment in self.deployments.values():
            deployment.wait_ready()
        router, engine_pod = self.release.pods("router")[0], self.deployments[STEADY].pods()[0]
        operator = self.release.pods("operator")[0]
        self.spared = {"router": router, "engine": engine_pod, "operator": operator}

    def remove(self) -> None:
        """Remove both deployments and the release."""
        for deployment in self.deployments.values():
            deployment.delete()
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")
        self.release.uninstall()

    async def run(self) -> report.Findings:
        """Return what was found."""
        answers = await asyncio.to_thread(right_answers, pool(), MODEL)
        seed = self.options.seed
        endpoints = self.release.endpoints(self.cluster.nodes[0].address)
        plan = Plan(endpoints, {BUSY: 0.5, STEADY: 0.5}, self.options.rate, self.options.streams)
        load = Load(plan, answers, self.keys, seed)
        uid = str(self.spared["router"]["metadata"]["uid"])
        busy, kills = self.deployments[BUSY], load.kills
        faults = Faults(self.cluster, self.release, busy, uid, self.keys, kills.note, seed)
        findings = report.Findings(load.counts)
        await asyncio.to_thread(self._wait_for_keys)
        self.watch = Watch(
            self.cluster.kubectl,
            self.release,
            list(self.deployments.values()),
            self.spared,
            SpeedProfile.load(FAST).num_kv_blocks,
        )
        watching = [
            asyncio.create_task(each) for each in (self.watch.sample(), self.watch.follow())
        ]
        self.rest["before"] = await self.watch.figures_at_rest(REST_SECONDS / 2)
        async with load:
            await load.fill(STEADY, self.options.fill)
            pausing = asyncio.create_task(self._rest_now_and_then(load, findings))
            await Injection(faults, Schedule(KINDS, seed), findings, self.watch.now).run(
                self.options.seconds, self.options.every
            )
            pausing.cancel()
            await asyncio.gather(pausing, return_exceptions=True)
            self.rest["under load"] = self.watch.figures(300.0)
            load.resume()
            await load.pause()
            findings.defects += [f"the load itself: {error!r}" for error in load.failed()]
            await self.watch.check_rest(findings)
        for name, deployment in self.deployments.items():
            try:
                await asyncio.to_thread(insist, deployment.wait_ready, 300.0)
            except HarnessError as error:
                findings.defects.append(f"{name} is not Ready at the end: {error}")
        self.rest["after"] = await self.watch.figures_at_rest(REST_SECONDS)
        for each in watching:
            each.cancel()
        for result in await asyncio.gather(*watching, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                findings.defects.append(f"sampling ended: {result!r}")
        return findings

    def record(self, findings: report.Findings, command: str) -> dict[str, Any]:
        """Return the result file's content."""
        processes = report.trends(self.watch.samples.by_life, self.watch.began)
        if self.options.seconds >= JUDGED_SECONDS:
            findings.defects += report.not_judged(processes, ROLES)
        findings.defects += sorted(self.watch.crashes)
        told = report.gauge_trends(self.watch.gauges)
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": self.commit,
            "hardware": machine(),
            "command": command,
            "seconds_of_load": self.options.seconds,
            "seconds_between_faults": self.options.every,
            "problems": report.problems(findings, (processes, told)),
            "requests": report.requests(findings.counts),
            "faults": report.fault_table(findings.faults),
            "faults_in_all": len(findings.faults),
            "at_rest": findings.idle,
            "memory_at_rest": self.rest,
            "lives": report.short_lives(self.watch.samples.by_life),
            "processes": processes,
            "gauges": told,
        }

    async def _rest_now_and_then(self, load: Load, findings: report.Findings) -> None:
        """Let the load run dry every some minutes, and look at what is held then."""
        while True:
            await asyncio.sleep(self.options.rest_every)
            await load.pause()
            await self.watch.check_rest(findings)
            load.resume()

    def _wait_for_keys(self) -> None:
        """Return when every router knows the keys."""

        def known() -> bool:
            urls = [metrics_url("router", pod) for pod in self.release.pods("router")]
            return all(gauges(url).get("kvasir_router_api_keys") == 4 for url in urls)

        wait_for("routers that know the keys", known, 180, 1.0)


def _spec(profile: str) -> dict[str, Any]:
    """Spec of a deployment of simulated engines."""
    engine = {
        "config": {"device": "sim", "maxNumSeqs": 128},
        "args": ["--speed-profile", profile],
    }
    return {"model": {"uri": MODEL}, "engine": engine, "lifecycle": {"drainSeconds": 20}}


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of a run on the cluster that is up, or on one of its own."""
    with ExitStack() as stack:
        if run_directory().exists():
            made = Soak(Cluster(), options)
            stack.callback(made.remove)
        else:
            stack.enter_context(down_afterwards())
            made = Soak(cluster_up(2, lambda text: print(text, flush=True)), options)
        made.install()
        findings = asyncio.run(made.run())
        return made.record(findings, " ".join(["python", *sys.argv]))


def main() -> int:
    """Return the exit status: 1 when something was lost, grew or did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="of load")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two faults")
    parser.add_argument("--rest-every", type=float, default=600.0, help="seconds between rests")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--streams", type=int, default=12, help="streams at a time")
    parser.add_argument(
        "--fill", type=int, default=FILLING_PROMPTS, help="prompts before the first fault"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    record = soak(options)
    if options.save:
        options.save.write_text(json.dumps(record, indent=1) + "\n")
    shown = {name: record[name] for name in ("requests", "faults", "lives", "memory_at_rest")}
    print(json.dumps(shown, indent=1))
    for problem in record["problems"]:
        print(f"FAILED  {problem}")
    return int(bool(record["problems"]))


if __name__ == "__main__":
    sys.exit(main())
