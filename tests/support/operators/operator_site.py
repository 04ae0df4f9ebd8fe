"""The operator as a process, and what stands in for nodes and routers: pods become what a test
says, routers serve what it says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from kvasir.kube import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.objects import condition
from kvasir.resource import labels
from kvasir_operator.kinds import LLMDEPLOYMENTS, PODS

CHART = Path(__file__).parents[3] / "charts" / "kvasir"
ACCOUNT = "kvasir-test/kvasir-operator"
DEADLINE = 120.0
"""Seconds that something may take on a loaded machine."""


_NOW = "2026-01-01T00:00:00Z"


RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


class Operator:
    """The process."""

    def __init__(self, kubeconfig: Path, log: Path, port: int, *flags: str) -> None:
        self._log = log
        self.port = port
        self._command = [
            *(sys.executable, "-m", "kvasir", "operator", "--namespace", "kvasir-test"),
            *("--image-cpu", "cpu:1", "--image-cuda", "cuda:1", "--image-sim", "sim:1"),
            *("--resync-seconds", "1", "--lease-seconds", "30", "--metrics-port", str(port)),
            *("--host", "127.0.0.1"),
            *flags,
        ]
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """As a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=30).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def is_leading(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200
        except httpx.HTTPError:
            return False


class Routers:
    """A router that serves what `serving` has, and reports `loads`."""

    def __init__(self) -> None:
        self.serving: set[str] = set()
        self.others: set[str] = set()
        """Servers of others that it serves, beside engines."""
        self.problems: dict[str, str] = {}
        self.loads: dict[str, dict[str, Any]] = {}
        """Scaling signals by model."""
        self.canaries: dict[str, dict[str, Any]] = {}
        """Samples of canaries by model."""
        routers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers = {
                    "/serving": {
                        "serving": sorted(routers.serving | routers.others),
                        "problems": routers.problems,
                    },
                    "/scaling": {"models": routers.loads},
                    "/canaries": {"models": routers.canaries},
                }
                body = json.dumps(answers.get(self.path)).encode()
                self.send_response(200 if self.path in answers else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Site:
    """One namespace of the cluster, and a kubelet's part in it."""

    def __init__(self, cluster: Cluster, namespace: str, router: Routers) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.router = router
        self.takes_pods = True
        """The router serves every engine that is up."""
        self.fate: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda pod: None
        """Another status for a pod than a healthy one's."""

    async def apply(self, name: str = "m", **spec: Any) -> dict[str, Any]:
        """The user's kubectl apply."""
        body = {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"model": {"uri": "builtin://kvasir-tiny"}, **spec},
        }
        return await self.cluster.apply(LLMDEPLOYMENTS, body, "user")

    async def get(self, kind: Kind = LLMDEPLOYMENTS, name: str = "m") -> dict[str, Any]:
        found = await self.cluster.get(kind, self.namespace, name)
        assert found is not None, f"there is no {kind.plural} {name}"
        return found

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[list[dict[str, Any]]]:
        """A list of every version of the deployment from now on."""
        versions: list[dict[str, Any]] = []
        version = (await self.get())["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version}

        async def follow() -> None:
            path = LLMDEPLOYMENTS.path(self.namespace)
            timeout = aiohttp.ClientTimeout(total=None)
            async with self.cluster.open("GET", path, query, timeout=timeout) as answer:
                async for line in answer.content:
                    versions.append(json.loads(line)["object"])  # noqa: PERF401 - as they come

        following = asyncio.create_task(follow())
        try:
            yield versions
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def edit(self, kind: Kind, name: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self.cluster.merge(kind, self.namespace, name, body)

    async def engines(self) -> list[dict[str, Any]]:
        selector = f"{labels.COMPONENT}={labels.ENGINE}"
        return await self.cluster.list(PODS, self.namespace, selector)

    async def condition(self, kind: str, name: str = "m") -> tuple[str, str]:
        found = condition(await self.get(name=name), kind)
        return str(found.get("status", "")), str(found.get("reason", ""))

    async def eventually(self, check: Callable[[], Awaitable[Any]], what: str = "") -> Any:
        """Play kubelet until `check` gives something true."""
        end = time.monotonic() + DEADLINE
        while True:
            await self.play()
            found = await check()
            if found:
                return found
            if time.monotonic() > end:
                resource = await self.cluster.list(LLMDEPLOYMENTS, self.namespace)
                raise AssertionError(f"not within {DEADLINE} s: {what or check} {resource}")
            await asyncio.sleep(0.1)

    async def until(self, kind: str, status: str, reason: str = "", name: str = "m") -> None:
        """Wait for a condition that is about the newest generation."""

        async def check() -> bool:
            resource = await self.get(name=name)
            current = (resource.get("status") or {}).get("observedGeneration")
            found = condition(resource, kind)
            same = found.get("status") == status and reason in ("", found.get("reason"))
            return bool(same and current == resource["metadata"]["generation"])

        await self.eventually(check, f"{kind} {status} {reason}")

    async def play(self) -> None:
        """Each engine's pod becomes what its fate says; routers take those that are up."""
        pods = await self.engines()
        self.router.serving = (
            {f"{pod['metadata']['uid']}/0" for pod in pods} if self.takes_pods else set()
        )
        for pod in pods:
            status = self.fate(pod) or running(pod)
            if not _as_told(pod, status):
                try:
                    await self.cluster.merge_status(
                        PODS, self.namespace, pod["metadata"]["name"], status
                    )
                except ApiError as error:
                    if error.status not in (404, 409):
                        raise

    async def finish_downloads(self) -> bool:
        """The pods of download Jobs end well; whether there are any."""
        selector = f"{labels.COMPONENT}={labels.DOWNLOAD}"
        pods = await self.cluster.list(PODS, self.namespace, selector)
        for pod in pods:
            if (pod.get("status") or {}).get("phase") != "Succeeded":
                name = pod["metadata"]["name"]
                await self.cluster.merge_status(PODS, self.namespace, name, DONE)
        return bool(pods)

    async def start_router(self, name: str = "router", address: str = "127.0.0.1") -> None:
        """A Ready router's pod at `address`."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {labels.COMPONENT: labels.ROUTER},
            },
            "spec": {"containers": [{"name": "router", "image": "router:1"}]},
        }
        await self.cluster.apply(PODS, pod, "test")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": _NOW}
        status = {"phase": "Running", "podIP": address, "conditions": [ready]}
        await self.cluster.merge_status(PODS, self.namespace, name, status)


DONE = {
    "phase": "Succeeded",
    "containerStatuses": [
        {
            "name": labels.DOWNLOAD,
            "image": "cpu:1",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {
                "terminated": {
                    "exitCode": 0,
                    "reason": "Completed",
                    "message": '{"phase":"done","bytes":5,"totalBytes":5,"permanent":false}',
                    "startedAt": _NOW,
                    "finishedAt": _NOW,
                }
            },
        }
    ],
}
"""The status of a download's pod that has ended well."""


def running(pod: dict[str, Any]) -> dict[str, Any]:
    """The status of a pod whose engine is up, with Ready as a kubelet works it out."""
    gated = bool(pod["spec"].get("readinessGates"))
    routed = not gated or condition(pod, labels.ROUTED).get("status") == "True"
    engine = {
        "name": labels.ENGINE,
        "image": pod["spec"]["containers"][0]["image"],
        "imageID": "",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": _NOW}},
    }
    kinds = {"PodScheduled": True, "ContainersReady": True, "Ready": routed}
    return {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "containerStatuses": [engine],
        "conditions": [
            {"type": kind, "status": str(holds), "lastTransitionTime": _NOW}
            for kind, holds in kinds.items()
        ],
    }


def _as_told(pod: dict[str, Any], status: dict[str, Any]) -> bool:
    told = {each["type"]: each["status"] for each in status.get("conditions", ())}
    states = [each.get("state") for each in status.get("containerStatuses", ())]
    live = pod.get("status") or {}
    return (
        live.get("phase") == status["phase"]
        and all(condition(pod, kind).get("status") == held for kind, held in told.items())
        and [each.get("state") for each in live.get("containerStatuses") or ()] == states
    )
