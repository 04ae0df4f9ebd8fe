"""A fleet with a canary in virtual time: the operator's plan and a router's split, as they are.

What stands in is the cluster (pods start when their time has come, the status reaches the router a
second later) and the engines (their answers are drawn). The proxy's part is one rule: a request
that failed is sent again, at most twice, if the budget allows.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import msgspec
from support.canary_answers import Revision
from support.operator_world import World, pod, waiting

from kvasir.resource import labels
from kvasir.wire.canary_samples import RevisionSamples
from kvasir_operator.objects import format_time
from kvasir_router.discovery.kubernetes_objects import read_deployment
from kvasir_router.discovery.kubernetes_snapshot import split_of
from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.replica import Health
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.wire.usage import Usage

RATE = 100
START_SECONDS = 20.0
LOOK_SECONDS = 5
TOKENS = 101


class VirtualLoop:
    """Timers of replicas' circuit breakers."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        heappush(self._timers, (self.now + seconds, len(self._timers), call))

    def run_until(self, now: float) -> None:
        self.now = now
        while self._timers and self._timers[0][0] <= now:
            heappop(self._timers)[2]()


@dataclass
class Counts:
    """What clients have met with."""

    requests: int = 0
    failed: int = 0
    slow: int = 0
    """Answers of a canary whose tokens come more slowly."""


class CanaryFleet:
    """Four replicas of `stable`; the spec has just changed to what answers as `canary`."""

    def __init__(
        self,
        loop: VirtualLoop,
        canary: Revision,
        *,
        seed: int,
        starts: bool = True,
        stable: Revision | None = None,
    ) -> None:
        self.loop = loop
        self.draw = random.Random(seed)
        self.counts = Counts()
        self.starts = starts
        steps = [{"weight": 10}, {"weight": 50}]
        self.world = World(
            {
                "model": {"uri": "builtin://kvasir-tiny"},
                "replicas": 4,
                "rollout": {"canary": {"steps": steps}},
            }
        )
        self.began = self.world.observed.now
        self.world.step()
        self.old = self.world.revision
        self.revisions = {self.old: stable or Revision()}
        self.canary = canary
        self.stable_pods = [(f"s{n}", self.old, -60.0) for n in range(4)]
        self.canary_pods: list[tuple[str, str, float]] = []
        self.fleet = Fleet(
            lambda spec: RoundRobin(),
            lambda spec: ConnectionPool(spec.host, spec.port, connect_timeout=1, idle_timeout=1),
            1000,
        )
        self._see()
        self.world.step()
        self._route()
        self.world.edit({"engine": {"args": ["--no-overlap"]}})

    @property
    def rollout(self) -> dict[str, Any]:
        """The canary's state in the status."""
        return dict(self.world.observed.status.get("rollout") or {})

    @property
    def phase(self) -> str:
        return str(self.rollout.get("phase", ""))

    def run(self, seconds: int, until: str = "") -> float:
        """Run for so long, or until a phase; return the seconds since the spec has changed."""
        for _ in range(seconds):
            now = self.loop.now + 1.0
            if int(now) % LOOK_SECONDS == 0:
                self.look()
            for at in range(RATE):
                self.loop.run_until(now - 1.0 + at / RATE)
                self._request()
            self.loop.run_until(now)
            self._route()
            if until and self.phase == until:
                break
        return self.loop.now

    def look(self) -> None:
        """The operator looks once, and the cluster does what it wants."""
        self._see()
        model = self.fleet.models["m"]
        samples = model.split.samples() if model.split is not None else None
        self.world.see(canary_samples=copy.deepcopy(samples))
        self.world.step()
        live = self.world.observed.canary_deployment
        wanted = live["spec"]["replicas"] if live is not None else 0
        del self.canary_pods[wanted:]
        while len(self.canary_pods) < wanted:
            assert live is not None
            revision = live["spec"]["template"]["metadata"]["labels"][labels.REVISION]
            self.revisions.setdefault(revision, self.canary)
            self.canary_pods.append(
                (f"c{self.loop.now}-{len(self.canary_pods)}", revision, self.loop.now)
            )
        self._roll()

    def _roll(self) -> None:
        """Replace one pod of the stable Deployment by its newest template, when the last serves."""
        revision = self.world.revision
        old = [each for each in self.stable_pods if each[1] != revision]
        if old and all(self._is_up(each) for each in self.stable_pods):
            self.stable_pods.remove(old[0])
            self.stable_pods.append((f"n{self.loop.now}", revision, self.loop.now))

    def _is_up(self, each: tuple[str, str, float]) -> bool:
        name, _, since = each
        return self.loop.now - since >= START_SECONDS and (self.starts or name[0] == "s")

    def _see(self) -> None:
        self.world.later(self.loop.now - (self.world.observed.now - self.began).total_seconds())
        pods = []
        for each in (*self.stable_pods, *self.canary_pods):
            name, revision, since = each
            up = self._is_up(each)
            status = None
            if not up and not self.starts:
                status = waiting("ImagePullBackOff", "no such image")
            made = pod(name, revision, up=up, routed=up, canary=name[0] == "c", status=status)
            seconds = since - self.loop.now
            now = self.world.observed.now
            made["metadata"]["creationTimestamp"] = format_time(
                now.fromtimestamp(now.timestamp() + seconds, now.tzinfo)
            )
            pods.append(made)
        live = copy.deepcopy(self.world.observed.deployment)
        assert live is not None
        revision = self.world.revision
        updated = [each for each in self.stable_pods if each[1] == revision]
        live["status"] = {
            "replicas": 4,
            "updatedReplicas": len(updated),
            "availableReplicas": sum(map(self._is_up, self.stable_pods)),
        }
        self.world.see(deployment=live).pods(*pods)

    def _route(self) -> None:
        """The router learns what the API server has."""
        resource = {
            **self.world.observed.resource,
            "metadata": {"uid": "u", "name": "m", "namespace": "ns"},
        }
        split = split_of(read_deployment(msgspec.Raw(msgspec.json.encode(resource))))
        replicas = tuple(
            ReplicaSpec(name, "127.0.0.1", 1, revision=revision, canary=name[0] == "c")
            for name, revision, since in (*self.stable_pods, *self.canary_pods)
            if self._is_up((name, revision, since))
        )
        self.fleet.apply((ModelSpec("m", replicas=replicas, split=split),))
        model = self.fleet.models["m"]
        for replica in model.replicas.values():
            if replica.health is Health.STARTING:
                replica.health = Health.READY
        model.refresh()

    def _request(self) -> None:
        model = self.fleet.models["m"]
        model.budget.request(self.loop.now)
        self.counts.requests += 1
        query = Query(Request(), Envelope(stream=True))
        if model.split is not None:
            query.to_canary = model.split.sends_to_canary(query)
        tried: list[Any] = []
        while True:
            choice = model.choose(query, tried)
            if choice is None:
                self.counts.failed += 1
                return
            replica = choice.replica
            model.policy.sent(query, choice)
            answers = self.revisions[replica.spec.revision]
            drawn = RevisionSamples()
            replica.acquire()
            failed = answers.count_one(self.draw, drawn)
            replica.release()
            if not failed:
                break
            replica.failed("500")
            tried.append(replica)
            if len(tried) > 2 or not model.budget.spend(self.loop.now):
                self.counts.failed += 1
                return
        replica.succeeded()
        self.counts.slow += replica.spec.revision != self.old and answers.itl > Revision().itl
        if model.split is None:
            return
        if drawn.refused:
            model.split.answered(query, replica, 400, 0.0, 0.01, None)
            return
        [ttft], [itl] = drawn.ttft, drawn.itl
        first = 0.0005 * 1.04 ** (ttft - 0.5)
        rest = 0.0005 * 1.04 ** (itl - 0.5) * (TOKENS - 1)
        model.split.answered(query, replica, 200, first, first + rest, Usage(10, TOKENS))
