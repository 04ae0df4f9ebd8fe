"""Watch processes, gauges, crashes and what is held at rest while a soak runs."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from soaking import report
from soaking.cluster_faults import insist
from soaking.sampling import FIGURES, Samples, changed, gauges, lives

from harness.errors import HarnessError
from harness.kubectl import Kubectl
from harness.proof.deployment import Deployment
from harness.proof.release import Release

SAMPLE_SECONDS, GAUGE_SECONDS = 5.0, 15.0
DRAIN_SECONDS = 120.0
"""Seconds in which all must be at rest when the load has ended."""
AT_REST = {
    "engine": {
        "kvasir_num_requests_running": 0.0,
        "kvasir_num_requests_waiting": 0.0,
        "kvasir_kv_cache_usage_perc": 0.0,
        "kvasir_failed_steps_total": 0.0,
    },
    "router": {
        "kvasir_router_stream_transcript_bytes": 0.0,
        "kvasir_router_body_bytes": 0.0,
        "kvasir_router_replica_in_flight": 0.0,
        "kvasir_router_waiting_requests": 0.0,
        "kvasir_router_task_failures_total": 0.0,
    },
}
FOLLOWED = {
    "router": (
        *("kvasir_router_stream_transcript_bytes", "kvasir_router_body_bytes"),
        *("kvasir_router_client_connections", "kvasir_router_index_blocks"),
        "kvasir_router_index_memory_bytes",
    ),
    "engine": ("kvasir_num_requests_running", "kvasir_num_requests_waiting"),
    "operator": ("kvasir_operator_queue_length",),
}
PORTS = {"engine": 8000, "router": 8081, "operator": 8080}

Pod = Mapping[str, Any]


@dataclass
class Watch:
    """Observations of one run, whose time begins when this is made."""

    kubectl: Kubectl
    release: Release
    deployments: Sequence[Deployment]
    spared: Mapping[str, Pod]
    """Pods that no fault happens to, by part."""
    kv_blocks: int
    """KV blocks of the engine that is spared."""
    began: float = field(default_factory=time.monotonic)
    samples: Samples = field(default_factory=Samples)
    gauges: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    crashes: set[str] = field(default_factory=set)

    def now(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self.began

    async def sample(self) -> None:
        """Sample all processes, for ever."""
        while True:
            await asyncio.to_thread(self.samples.take)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def follow(self) -> None:
        """Follow gauges of the pods that are spared, and crashes of any, for ever."""
        while True:
            with suppress(HarnessError):
                pods = await asyncio.to_thread(self.kubectl.json, "get", "pods", "-A")
                self.crashes.update(report.crashes(pods["items"]))
            for part, pod in self.spared.items():
                with suppress(OSError):
                    self.note(part, await asyncio.to_thread(gauges, metrics_url(part, pod)))
            await asyncio.sleep(GAUGE_SECONDS)

    def note(self, part: str, found: Mapping[str, float]) -> None:
        """Add what is followed of a part's gauges."""
        at = self.now()
        for name in FOLLOWED[part]:
            self.gauges[part, name].append((at, found.get(name, 0.0)))
        if part == "engine":
            held = found["kvasir_kv_cache_usage_perc"] * self.kv_blocks
            self.gauges[part, "kvasir_kv_cache_blocks_held"].append((at, held))

    async def check_rest(self, findings: report.Findings) -> None:
        """Wait until nothing is held by any engine or router; note what is."""
        began = self.now()
        while True:
            pods = await asyncio.to_thread(self._pods)
            held, answered = await asyncio.to_thread(held_by, pods)
            took = self.now() - began
            if not held or took > DRAIN_SECONDS:
                break
            await asyncio.sleep(1)
        row = {"at": round(began), "seconds": round(took, 1), "pods": answered}
        findings.idle.append({**row, "left": held})
        print(f"{began:6.0f} s  at rest: {row} {held}", flush=True)

    def _pods(self) -> list[tuple[str, Pod]]:
        pods: list[tuple[str, Pod]] = [
            ("router", pod) for pod in insist(lambda: self.release.pods("router"))
        ]
        for deployment in self.deployments:
            pods += [("engine", pod) for pod in insist(deployment.pods)]
        return pods

    async def figures_at_rest(self, seconds: float) -> dict[str, dict[str, float]]:
        """Return the figures of the second half of so many seconds, when they have gone by."""
        await asyncio.sleep(seconds)
        return self.figures(seconds / 2)

    def figures(self, seconds: float) -> dict[str, dict[str, float]]:
        """Medians of the last seconds, of those that live and are spared."""
        since = time.monotonic() - seconds
        pods = {pod["metadata"]["uid"] for pod in self.spared.values()}
        found = {}
        for life in lives():
            recent = [each for each in self.samples.by_life.get(life, ()) if each.at >= since]
            if life.pod in pods and recent:
                medians = {n: round(median(getattr(s, n) for s in recent), 2) for n in FIGURES}
                found[f"{life.role} {life.pod[:8]}/{life.pid}"] = medians
        return found


def held_by(pods: Sequence[tuple[str, Pod]]) -> tuple[list[str], int]:
    """Return what pods hold, by part (engine, router), and how many answered."""
    held, answered = [], 0
    for part, pod in pods:
        with suppress(OSError, KeyError):
            now = gauges(metrics_url(part, pod))
            answered += 1
            name = pod["metadata"]["name"]
            held += [f"{name}: {k} {v:g}" for k, v in changed(now, AT_REST[part]).items()]
    return held, answered


def metrics_url(part: str, pod: Pod) -> str:
    """Return where a pod's metrics are."""
    return f"http://{pod['status']['podIP']}:{PORTS[part]}/metrics"
