"""Operator and router beside 200 LLMDeployments with 1,000 simulated pods.

    python benchmarks/operator_scale.py [--models 200] [--replicas 5] [--seconds 60] [--save]

A real API server, controller manager and scheduler; kwok plays the nodes. Its pods have addresses
of a network that this machine answers as its own, where one simulated engine serves all of them, so
that a real router finds every replica and the operator opens its readiness gates. As root, for that
network's route. Every replica is an engine of the same simulated model: the models' names are the
LLMDeployments'.

Then each LLMDeployment's replicas are changed, one after the other, and changed back; a change is
reconciled when its Deployment asks for as many pods. At rest the operator's CPU, memory and
requests are counted. The operator is started again at the end, beside everything that is there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
from common import ROOT, Figure, Report, cpu_seconds, metric_series, resident_mib, warn_if_busy

sys.path.insert(0, str(ROOT / "e2e" / "cluster"))

from harness.binaries import KWOK, binary, build_all
from harness.control_plane import ControlPlane
from kvasir.cli.local.ports import free_ports
from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir.resource import labels
from kvasir.resource.crd_writer import as_yaml
from kvasir_operator.kinds import DEPLOYMENTS, LLMDEPLOYMENTS, PODS

NETWORK = "10.66.0.0/16"
NAMESPACE = "default"
PODS_A_NODE = 100
SETTLE_SECONDS = 900.0
_T = TypeVar("_T")
STAGES = Path(__file__).parent / "data" / "kwok_stages.yaml"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="time at rest")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    return parser.parse_args()


def names_of(given: argparse.Namespace) -> list[str]:
    """Names of the LLMDeployments and their models."""
    return [f"model-{number}" for number in range(given.models)]


@contextlib.contextmanager
def answered_here() -> Iterator[None]:
    """Have this machine answer every address of the pods."""
    route = ("ip", "route", "{}", "local", NETWORK, "dev", "lo")
    subprocess.run([each.format("replace") for each in route], check=True)
    try:
        yield
    finally:
        subprocess.run([each.format("del") for each in route], check=False)


@contextlib.contextmanager
def process(log: Path, *command: object, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process while the block runs; what it says is appended to `log`."""
    with log.open("ab") as output:
        made = subprocess.Popen(
            list(map(str, command)),
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )
    try:
        yield made
    finally:
        made.terminate()
        made.wait()


class Site:
    """The control plane, what simulates its nodes, and the operator and router on it."""

    def __init__(self, plane: ControlPlane, directory: Path, stack: ExitStack) -> None:
        self.plane = plane
        self.directory = directory
        self._stack = stack
        self.router_port, self.admin_port, self.operator_port = free_ports(3)

    def start(self, nodes: int, models: Sequence[str]) -> None:
        """Start all but the operator."""
        self.plane.define(as_yaml())
        self.plane.start_scheduler()
        self._spawn(
            *("kwok", binary("kwok"), f"--kubeconfig={self.plane.kubeconfig}", f"--cidr={NETWORK}"),
            *("--manage-all-nodes=true", "--node-ip=10.66.0.1", f"--config={STAGES}"),
            # Nodes without one count as gone, and their pods as not Ready, every few seconds
            "--node-lease-duration-seconds=40",
        )
        self.plane.apply("---\n".join(map(_node, range(nodes))))
        self._kvasir(
            *("engine", "serve", "builtin://kvasir-tiny", "--device", "sim"),
            *("--host", "0.0.0.0", "--port", "8000", "--grpc-port", "8001"),
            *(part for name in models for part in ("--served-model-name", name)),
        )
        self._kvasir(
            *("router", "router", "--discovery", "kubernetes", "--watch-namespace", NAMESPACE),
            *("--host", "127.0.0.1", "--port", str(self.router_port)),
            *("--admin-host", "127.0.0.1", "--admin-port", str(self.admin_port)),
        )

    @contextlib.contextmanager
    def operator(self) -> Iterator[subprocess.Popen[bytes]]:
        """The operator while the block runs."""
        command = (sys.executable, "-m", "kvasir", "operator", "--host", "127.0.0.1")
        flags = ("--metrics-port", self.operator_port, "--router-admin-port", self.admin_port)
        images = ("--image-cpu", "none", "--image-sim", "none")
        kubeconfig = str(self.plane.kubeconfig)
        log = self.directory / "operator.log"
        with process(log, *command, *flags, *images, KUBECONFIG=kubeconfig) as made:
            yield made

    def writes(self) -> dict[str, float]:
        """Writes of the operator so far, by resource and verb."""
        return metric_series(self.operator_port, "kvasir_operator_api_writes_total")

    def served(self) -> int:
        """Replicas that the router serves."""
        with contextlib.suppress(httpx.HTTPError):
            return len(httpx.get(f"http://127.0.0.1:{self.admin_port}/serving").json()["serving"])
        return 0

    def _spawn(self, name: str, *command: object) -> None:
        self._stack.enter_context(process(self.directory / f"{name}.log", *command))

    def _kvasir(self, name: str, *command: str) -> None:
        environment = {"KUBECONFIG": str(self.plane.kubeconfig)}
        log = self.directory / f"{name}.log"
        self._stack.enter_context(
            process(log, sys.executable, "-m", "kvasir", *command, **environment)
        )


def _node(number: int) -> str:
    """A node that kwok plays."""
    return f"""
apiVersion: v1
kind: Node
metadata:
  name: node-{number}
  labels: {{kubernetes.io/hostname: node-{number}, kubernetes.io/os: linux, type: kwok}}
spec: {{}}
status:
  allocatable: {{cpu: 10k, memory: 10Ti, pods: "{PODS_A_NODE + 10}"}}
  capacity: {{cpu: 10k, memory: 10Ti, pods: "{PODS_A_NODE + 10}"}}
"""


async def until(what: str, holds: Any, seconds: float = SETTLE_SECONDS) -> float:
    """Return the seconds until `holds()` is true. Raises SystemExit."""
    began = time.monotonic()
    while True:
        found = holds()
        if await found if asyncio.iscoroutine(found) else found:
            return time.monotonic() - began
        if time.monotonic() - began > seconds:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.05)


async def beside(process: subprocess.Popen[bytes], work: Coroutine[Any, Any, _T]) -> _T:
    """Return what `work` returns. Raises SystemExit if the process ends before it: an operator ends
    that loses its Lease, as on a machine that is too busy."""
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait((task,), timeout=0.5))[0]:
        if process.poll() is not None:
            task.cancel()
            raise SystemExit("the operator has ended; its log says why")
    return task.result()


class Fleet:
    """The LLMDeployments."""

    def __init__(self, cluster: Cluster, names: Sequence[str], replicas: int) -> None:
        self._cluster = cluster
        self._names = names
        self._replicas = replicas

    async def make(self) -> None:
        """Make them, and the router's pod, which is not of a node."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "router",
                "namespace": NAMESPACE,
                "labels": {labels.COMPONENT: labels.ROUTER},
            },
            "spec": {
                "schedulerName": "none",
                "containers": [{"name": "router", "image": "none"}],
            },
        }
        await self._cluster.apply(PODS, pod, "benchmark")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
        await self._cluster.merge_status(PODS, NAMESPACE, "router", status)
        limit = asyncio.Semaphore(20)

        async def one(name: str) -> None:
            async with limit:
                body = {
                    "apiVersion": LLMDEPLOYMENTS.api_version,
                    "kind": "LLMDeployment",
                    "metadata": {"name": name, "namespace": NAMESPACE},
                    "spec": {
                        "model": {"uri": "builtin://kvasir-tiny"},
                        "engine": {"device": "sim"},
                        "replicas": self._replicas,
                    },
                }
                await self._cluster.create(LLMDEPLOYMENTS, body, "benchmark")

        await asyncio.gather(*map(one, self._names))

    async def ready(self) -> bool:
        """Return whether every one is Ready."""
        found = await self._cluster.list(LLMDEPLOYMENTS, NAMESPACE)
        return sum(map(_is_ready, found)) == len(self._names)

    async def changes(self) -> list[float]:
        """Seconds from each change of replicas until the Deployment asks for as many."""
        counts = (self._replicas + 1, self._replicas)
        return [await self._changed(name, wanted) for wanted in counts for name in self._names]

    async def _changed(self, name: str, wanted: int) -> float:
        began = time.monotonic()
        await self._cluster.merge(LLMDEPLOYMENTS, NAMESPACE, name, {"spec": {"replicas": wanted}})

        async def scaled() -> bool:
            deployment = await self._cluster.get(DEPLOYMENTS, NAMESPACE, name)
            return deployment is not None and deployment["spec"]["replicas"] == wanted

        while not await scaled():
            if time.monotonic() - began > SETTLE_SECONDS:
                raise SystemExit(f"{name} was not scaled")
            await asyncio.sleep(0.01)
        return time.monotonic() - began


def _is_ready(resource: dict[str, Any]) -> bool:
    status = resource.get("status") or {}
    held = {each["type"]: each["status"] for each in status.get("conditions", ())}
    return held.get("Ready") == "True"


async def _rest(site: Site, operator: int, seconds: float) -> dict[str, float]:
    """Measure the operator while nothing changes."""
    used, writes = cpu_seconds(operator), site.writes()
    await asyncio.sleep(seconds)
    written = {what: count - writes.get(what, 0.0) for what, count in site.writes().items()}
    for what, count in sorted(written.items()):
        if count:
            print(f"written at rest: {count:.0f} {what}")
    return {
        "cores": (cpu_seconds(operator) - used) / seconds,
        "writes": sum(written.values()) * 60 / seconds,
        "mib": resident_mib(operator),
    }


@contextlib.asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[Cluster]:
    """A client of the API server."""
    access = await load_access(environ={"KUBECONFIG": str(plane.kubeconfig)})
    async with Cluster(access, timeout=60) as cluster:
        yield cluster


async def measure(site: Site, given: argparse.Namespace) -> Report:
    pods = given.models * given.replicas
    async with connected(site.plane) as cluster:
        fleet = Fleet(cluster, names_of(given), given.replicas)
        with site.operator() as operator:
            made, changes = await beside(operator, _changed(site, fleet, pods))
            rest = await beside(operator, _rest(site, operator.pid, given.seconds))
        with site.operator():
            again = await until("the operator is at work again", lambda: _leads(site), 120)
    return _report(given, made, changes, rest, again)


async def _changed(site: Site, fleet: Fleet, pods: int) -> tuple[float, list[float]]:
    """Return the seconds until all are Ready, and those of each change; all is at rest then."""
    await fleet.make()
    made = await until("every LLMDeployment is Ready", fleet.ready)
    await until("the router serves every replica", lambda: site.served() >= pods)
    print(f"{pods} pods Ready after {made:.0f} s")
    changes = await fleet.changes()
    await until("every LLMDeployment is Ready again", fleet.ready)
    await asyncio.sleep(30)
    return made, changes


def _leads(site: Site) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{site.operator_port}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def _report(
    given: argparse.Namespace,
    made: float,
    changes: list[float],
    rest: dict[str, float],
    again: float,
) -> Report:
    p99 = statistics.quantiles(changes, n=100)[98]
    pods = given.models * given.replicas
    return Report(
        name="operator_scale",
        title="Operator beside many LLMDeployments",
        work=f"{given.models} LLMDeployments with {pods} pods on nodes that kwok plays, a real "
        f"router and one simulated engine; {len(changes)} changes, then {given.seconds:.0f} s at "
        "rest.",
        figures=[
            Figure("change until it is reconciled, p99", "s", [p99], "<= 1"),
            Figure("change until it is reconciled, median", "s", [statistics.median(changes)]),
            Figure("change until it is reconciled, slowest", "s", [max(changes)]),
            Figure("operator's memory", "MiB", [rest["mib"]], "<= 150", 0),
            Figure("operator at rest", "cores", [rest["cores"]], "<= 0.1", 3),
            Figure("writes at rest", "1/min", [rest["writes"]], digits=1),
            Figure("start beside them", "s", [again], "<= 10"),
            Figure("all Ready from nothing", "s", [made], digits=0),
        ],
    )


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    warn_if_busy()
    build_all(print, (KWOK,))
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        stack.enter_context(answered_here())
        plane = ControlPlane(Path(directory))
        stack.callback(plane.stop)
        plane.start()
        site = Site(plane, Path(directory), stack)
        most = given.models * (given.replicas + 1)
        site.start(-(-most // PODS_A_NODE) + 1, names_of(given))
        try:
            report = asyncio.run(measure(site, given))
        except (SystemExit, ApiError):
            for log in ("operator.log", "router.log", "kwok.log"):
                print(log, (site.directory / log).read_text()[-2000:], file=sys.stderr)
            raise
    report.publish(save=given.save)


if __name__ == "__main__":
    main()
