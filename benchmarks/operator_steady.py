"""Cost of an idle operator: writes to the API, memory and CPU with 20 LLMDeployments and pods of
others, on a control plane without nodes.

    python benchmarks/operator_steady.py [--foreign-pods 2000] [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from common import cpu_seconds, metric, resident_mib

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e" / "cluster"))

from harness.control_plane import ControlPlane
from kvasir.cli.local.ports import free_ports
from kvasir.kube import Kind
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir.resource.crd_writer import as_yaml
from kvasir_operator.kinds import DEPLOYMENTS, LLMDEPLOYMENTS, PODS

DEPLOYMENTS_WANTED = 20
_SETTLE_SECONDS = 300.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--foreign-pods", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    return parser.parse_args()


async def make(cluster: Cluster, kind: Kind, body: dict[str, object], count: int) -> None:
    """`count` objects that differ by name, 20 at a time."""
    limit = asyncio.Semaphore(20)

    async def one(number: int) -> None:
        async with limit:
            metadata = {"name": f"x{number}", "namespace": "default"}
            await cluster.create(kind, {**body, "metadata": metadata}, "benchmark")

    await asyncio.gather(*(one(number) for number in range(count)))


async def settled(cluster: Cluster) -> None:
    """Wait until every LLMDeployment has its Deployment."""
    end = time.monotonic() + _SETTLE_SECONDS
    while len(await cluster.list(DEPLOYMENTS, "default")) < DEPLOYMENTS_WANTED:
        if time.monotonic() > end:
            raise SystemExit("the operator did not make every Deployment")
        await asyncio.sleep(1)
    await asyncio.sleep(15)


def writes(port: int) -> float:
    return metric(port, "kvasir_operator_api_writes_total")


async def measure(plane: ControlPlane, foreign: int, seconds: float) -> dict[str, float]:
    plane.apply(as_yaml())
    plane.kubectl("wait", "--for=condition=Established", "crd/llmdeployments.kvasir.dev")
    (port,) = free_ports(1)
    environ = {"KUBECONFIG": str(plane.kubeconfig)}
    async with Cluster(await load_access(environ=environ), timeout=60) as cluster:
        containers = [{"name": "c", "image": "none"}]
        pod: dict[str, object] = {"apiVersion": "v1", "kind": "Pod"}
        pod["spec"] = {"containers": containers}
        await make(cluster, PODS, pod, foreign)
        spec = {"model": {"uri": "builtin://kvasir-tiny"}}
        head = {"apiVersion": LLMDEPLOYMENTS.api_version, "kind": "LLMDeployment"}
        await make(cluster, LLMDEPLOYMENTS, {**head, "spec": spec}, DEPLOYMENTS_WANTED)
        command = [sys.executable, "-m", "kvasir", "operator", "--host", "127.0.0.1"]
        command += ["--metrics-port", str(port), "--image-cpu", "none"]
        with tempfile.TemporaryFile() as log:
            operator = await asyncio.create_subprocess_exec(
                *command, env={**os.environ, **environ}, stdout=log, stderr=log
            )
            try:
                await settled(cluster)
                before, used = writes(port), cpu_seconds(operator.pid)
                await asyncio.sleep(seconds)
                return {
                    "llmdeployments": DEPLOYMENTS_WANTED,
                    "foreign_pods": foreign,
                    "writes_per_minute": (writes(port) - before) * 60 / seconds,
                    "cpu_percent": round((cpu_seconds(operator.pid) - used) * 100 / seconds, 2),
                    "resident_mib": round(resident_mib(operator.pid), 1),
                }
            finally:
                operator.terminate()
                await operator.wait()


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as directory:
        plane = ControlPlane(Path(directory))
        try:
            plane.start()
            found = asyncio.run(measure(plane, given.foreign_pods, given.seconds))
        finally:
            plane.stop()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
