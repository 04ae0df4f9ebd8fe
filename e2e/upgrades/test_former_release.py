"""Release 0.1.0 becomes this version while a model serves: nothing is lost, and every engine is
replaced once.

All of it is real: chart and images of the release are built from its commit; its operator has made
the engines and its routers let the clients in, until `helm upgrade` replaces them. Engines are
simulated ones of either version, with a model that the release has downloaded onto a volume.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness import former
from harness.cluster import Cluster
from harness.places import REPOSITORY
from harness.proof.deployment import Deployment
from harness.proof.fixtures import TINY
from harness.proof.model_server import ModelServer
from harness.proof.pod_watch import PodWatch, restarts
from harness.proof.release import CHART, TIMEOUT, Release
from harness.traffic.load import Load
from harness.traffic.outcomes import failures, table
from harness.traffic.plan import Plan
from harness.traffic.truth import right_answers
from kvasir.resource import labels

pytestmark = pytest.mark.timeout(1500)
SETTLE_SECONDS = 20.0
"""Seconds of load before and after the upgrade, and with one half of it."""
SECONDS = 420
MOVED = re.compile(r'^kvasir_router_stream_migrations_total\{.*outcome="moved".*\} (\S+)$', re.M)
CRDS = ("llmdeployments.kvasir.dev", "llmdeploymentclasses.kvasir.dev", "modelnames.kvasir.dev")
SAVE = "KVASIR_E2E_SAVE"
"""Environment variable: a directory for the figures."""
OWN_IMAGES: dict[str, Any] = {
    "operator": {"image": {"tag": "dev"}},
    "router": {"image": {"tag": "dev"}},
    "engine": {"images": {"sim": {"tag": "dev"}}},
    "downloads": {"image": {"tag": "dev"}},
}
SPEC: dict[str, Any] = {
    "model": {"uri": "hf://org/tiny"},
    "replicas": 2,
    "engine": {
        "config": {"device": "sim", "maxNumSeqs": 128},
        "args": ["--speed-profile", "slow"],
    },
    "cache": {"pvc": {"size": "1Gi"}},
    # Most streams are longer, so they move: those of the release's last engine to this version's.
    "lifecycle": {"preStopSeconds": 3, "drainSeconds": 5},
}


@dataclass
class Site:
    """The former release with a model of two Ready replicas, behind two routers."""

    cluster: Cluster
    release: Release
    deployment: Deployment
    moves: dict[str, float] = field(default_factory=dict)
    """Streams that each router has moved."""

    def install(self, hub: str, router: dict[str, Any]) -> None:
        """Install the release and its model; `router` are further values of the routers."""
        resources = {"requests": {"cpu": "100m", "memory": "256Mi"}}
        values = {
            "global": {"imageRegistry": "localhost/kvasir"},
            "router": {"service": {"type": "NodePort"}, "resources": resources, **router},
            "downloads": {"env": {"HF_ENDPOINT": f"http://{hub}"}},
        }
        self.release.install(values, former.chart())
        self.deployment.apply(SPEC)
        self.deployment.wait_ready(seconds=SECONDS)

    def remove(self) -> None:
        self.deployment.delete()
        self.release.uninstall()
        self.cluster.control_plane.undefine(*CRDS)
        namespaces = (self.release.namespace, self.deployment.namespace)
        self.cluster.kubectl("delete", "namespace", *namespaces, timeout=300)

    def define(self) -> None:
        """Apply this version's definitions."""
        files = sorted((CHART / "files" / "crds").iterdir())
        self.cluster.control_plane.define("\n---\n".join(file.read_text() for file in files))

    def upgrade(self, *flags: str) -> None:
        self.release.upgrade(OWN_IMAGES, *flags)

    def wait_for_routers(self) -> None:
        """Return when both routers are of this version, and Ready."""
        name = f"deployment/{self.release.name}-router"
        where = ("-n", self.release.namespace)
        self.cluster.kubectl(*where, "rollout", "status", name, f"--timeout={TIMEOUT}", timeout=400)

    def wait_for_engines(self) -> None:
        """Return when both engines are of this version and serve, and the former ones are gone."""

        def are_new() -> bool:
            self.moved()
            pods = self.deployment.pods(leaving=True)
            images = {pod["spec"]["containers"][0]["image"] for pod in pods}
            return len(pods) == 2 and images == {"localhost/kvasir/engine-sim:dev"}

        self.deployment.wait(are_new, "engines of this version", SECONDS)
        self.deployment.wait_ready(seconds=SECONDS)

    def moved(self) -> int:
        """Return how many streams routers of either version are known to have moved to another
        engine, until they went."""
        routers = ("-n", self.release.namespace, "get", "pods", "-l", "kvasir.dev/component=router")
        for pod in self.cluster.kubectl.json(*routers)["items"]:
            url = f"http://{pod['status'].get('podIP')}:{labels.ROUTER_ADMIN_PORT}/metrics"
            with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
                counts = MOVED.findall(answer.read().decode())
                self.moves[pod["metadata"]["uid"]] = sum(map(float, counts))
        return int(sum(self.moves.values()))

    def plan(self) -> Plan:
        return Plan(
            endpoints=self.release.endpoints(self.cluster.nodes[0].address),
            model=self.deployment.name,
            key=self.release.api_key(),
            unary_rate=10.0,
            streams=20,
            stream_tokens=(50, 80, 120, 200, 320),
        )


@pytest.fixture(scope="module")
def images(cluster: Cluster) -> None:
    former.give_images(cluster.nodes, lambda text: print(text, flush=True))


@pytest.fixture
def site(cluster: Cluster, images: None) -> Iterator[Site]:
    """Nothing installed yet; removed at the end."""
    plane = cluster.control_plane
    plane.undefine(*CRDS)
    release = Release(cluster.kubectl, namespace=plane.namespace("kvasir"))
    made = Site(cluster, release, Deployment(cluster.kubectl, plane.namespace("models"), "load"))
    yield made
    made.remove()


def save(name: str, load: Load, pods: PodWatch, moved: int) -> None:
    """Write the run's figures into the file of this suite, where SAVE says."""
    directory = os.environ.get(SAVE)
    if not directory:
        return
    file = Path(directory) / "upgrades.json"
    record = json.loads(file.read_text()) if file.exists() else {}
    command = ("git", "rev-parse", "--short=8", "HEAD")
    commit = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    record[name] = {
        "date": datetime.now(UTC).date().isoformat(),
        "from": f"{former.VERSION} ({former.COMMIT[:8]})",
        "to": commit.stdout.strip(),
        "steps": [step.summary() for step in load.steps],
        "failures": len(load.failures()),
        "streams_moved": moved,
        "pods": counted(pods),
    }
    file.write_text(json.dumps(record, indent=1) + "\n")


def counted(pods: PodWatch) -> dict[str, Any]:
    """Return how many pods each component has had, by image, and how often containers restarted."""
    return {
        component: {
            "pods": _by_tag(pods.seen(component)),
            "restarts": sum(map(restarts, pods.seen(component))),
        }
        for component in (labels.ENGINE, labels.ROUTER, labels.OPERATOR)
    }


def _by_tag(pods: list[dict[str, Any]]) -> dict[str, int]:
    tags = [pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in pods]
    return {tag: tags.count(tag) for tag in sorted(set(tags))}


async def definitions_first(site: Site, load: Load) -> None:
    load.step("definitions")
    await asyncio.to_thread(site.define)
    await asyncio.sleep(SETTLE_SECONDS / 2)
    load.step("chart")
    await asyncio.to_thread(site.upgrade)
    await asyncio.to_thread(site.wait_for_routers)


async def chart_first(site: Site, load: Load) -> None:
    load.step("chart")
    await asyncio.to_thread(site.upgrade, "--set", "crds.enabled=false")
    await asyncio.sleep(SETTLE_SECONDS)
    load.step("definitions")
    await asyncio.to_thread(site.define)
    await asyncio.to_thread(site.wait_for_routers)


@pytest.mark.parametrize("upgrade", [definitions_first, chart_first])
async def test_an_upgrade_loses_nothing_and_replaces_each_engine_once(
    cluster: Cluster, site: Site, model_server: ModelServer, upgrade: Any
) -> None:
    weights = model_server.reads_of("model.safetensors")["hub"]
    await asyncio.to_thread(site.install, model_server.host, {})
    deployment, plan = site.deployment, site.plan()
    uid = deployment.get()["metadata"]["uid"]
    expected = await asyncio.to_thread(right_answers, plan.questions(), str(TINY))
    began = time.monotonic()
    with PodWatch(cluster.kubectl.kubeconfig) as pods:
        async with Load(plan, expected) as load:
            await asyncio.sleep(SETTLE_SECONDS)
            await upgrade(site, load)
            load.step("engines")
            await asyncio.to_thread(site.wait_for_engines)
            load.step("after")
            await asyncio.sleep(SETTLE_SECONDS)
            await load.finish()
    lost, seen, moved = failures(load.steps), counted(pods), site.moved()
    print(f"\n{table(load.steps)}\n{time.monotonic() - began:.0f} s in all")
    print(f"{moved} streams moved\n{seen}")
    save(upgrade.__name__, load, pods, moved)
    assert not lost, f"{len(lost)} of the requests failed, first: {json.dumps(lost[:5], indent=1)}"
    assert moved, "no stream was longer than the drain of its engine"
    assert all(step.count("unary") and step.count("stream") for step in load.steps[:-1])
    each = {former.VERSION: 2, "dev": 2}
    assert seen[labels.ENGINE] == {"pods": each, "restarts": 0}
    assert seen[labels.ROUTER] == {"pods": each, "restarts": 0}
    assert seen[labels.OPERATOR]["pods"] == {former.VERSION: 1, "dev": 1}
    assert deployment.get()["metadata"]["uid"] == uid
    assert model_server.reads_of("model.safetensors")["hub"] == weights + 1, "one download"


async def test_without_the_drain_of_the_former_routers_answers_break(
    cluster: Cluster, site: Site, model_server: ModelServer
) -> None:
    """The load would notice: routers that do not wait for their answers take them away."""
    router = {"preStopSeconds": 0, "drainSeconds": 0, "drainIdleSeconds": 0}
    await asyncio.to_thread(site.install, model_server.host, router)
    plan = site.plan()
    expected = await asyncio.to_thread(right_answers, plan.questions(), str(TINY))
    with PodWatch(cluster.kubectl.kubeconfig) as pods:
        async with Load(plan, expected) as load:
            await asyncio.sleep(SETTLE_SECONDS / 2)
            await definitions_first(site, load)
            await load.finish()
    print(f"\n{table(load.steps)}")
    save("without_drain_of_routers", load, pods, site.moved())
    assert any(each.kind == "stream" for each in load.failures())
