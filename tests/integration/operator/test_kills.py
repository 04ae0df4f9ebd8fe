"""The operator dies of every write that it makes, and the next one goes on from there."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_freezes import requests_of

from harness.streams import MAX_HEAD, connection, serving
from kvasir.cli.local.ports import free_ports
from kvasir.kube.objects import condition
from kvasir_operator.command import run_until_stopped
from kvasir_operator.kinds import CLAIMS, DEPLOYMENTS, JOBS, LEASES, LLMDEPLOYMENTS, PODS
from kvasir_operator.settings import Images, OperatorSettings

LOOKS = 5
"""At the resource, one a second, after which an operator has written what it had to."""
FIRST = {
    "llmdeploymentclasses",
    "modelnames",
    "serviceaccounts",
    "services",
    "poddisruptionbudgets",
    "networkpolicies",
    "persistentvolumeclaims",
    "jobs",
    "deployments",
    "llmdeployments/status",
    "pods/status",
}
"""Everything that a first operator writes; a change needs only the last three."""
MODEL = {"uri": "hf://org/model"}
_RESOURCE = re.compile(r"/v[^/]+/(?:namespaces/[^/]+/)?([a-z]+)(?:/[^/]+)?(/status)?$")
_LOOKED = re.compile(r'kvasir_operator_reconciles_total\{result="ok"\} ([0-9.]+)')


class Gateway:
    """The API server as one operator reaches it. It dies (SIGKILL) when its first write is done,
    without learning so: for the cluster that is also a death just before the second.

    Its Lease may be written all the time.
    """

    def __init__(self, plane: Any) -> None:
        self._trust = ssl.create_default_context(cafile=str(plane.authority.certificate))
        self._host, self._port = plane.host, int(plane.url.rpartition(":")[2])
        self.victim: BaseProcess | None = None
        self.deaths: list[str] = []
        """The write of each operator."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One of its connections."""
        dying: asyncio.Future[BaseProcess] = asyncio.Future()
        async with connection(self._host, self._port, self._trust) as (inward, onward):
            answers = asyncio.create_task(self._pass_answers(inward, writer, dying))
            try:
                await self._take(reader, onward, dying)
                if dying.done():
                    await answers
            finally:
                answers.cancel()

    async def _take(
        self,
        reader: asyncio.StreamReader,
        onward: asyncio.StreamWriter,
        dying: asyncio.Future[BaseProcess],
    ) -> None:
        with suppress(ConnectionError):
            async for head, body in requests_of(reader):
                if (what := _written(head)) is not None:
                    if self.victim is None:
                        return  # another write of the one that is about to die
                    self.deaths.append(what)
                    dying.set_result(self.victim)
                    self.victim = None
                onward.write(head + body)
                await onward.drain()

    async def _pass_answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dying: asyncio.Future[BaseProcess],
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(MAX_HEAD):
                if dying.done():
                    dying.result().kill()
                    return
                writer.write(data)
                await writer.drain()


def _written(head: bytes) -> str | None:
    """Return the object that a request writes; None for reads and for the Lease."""
    method, path, _ = head.decode("latin-1").split(" ", 2)
    found = _RESOURCE.search(path.partition("?")[0])
    if method in ("GET", "HEAD") or (found and found[1] == LEASES.plural):
        return None
    assert found, path
    return found[1] + (found[2] or "")


@pytest.fixture
async def gateway(
    plane: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gateway]:
    """The gateway; KUBECONFIG leads there, with the operator's rights."""
    made = Gateway(plane)
    async with serving(made.serve) as port:
        config = json.loads(plane.account.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        path = tmp_path / "gateway.kubeconfig"
        path.write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield made


class Relay:
    """Operators, one after the other, each of which comes one write further."""

    def __init__(self, site: Any, gateway: Gateway, port: int) -> None:
        self.least_ready = 0
        """Engines that serve all the time."""
        self._site = site
        self._gateway = gateway
        self._metrics = f"http://127.0.0.1:{port}/metrics"
        self._settings = OperatorSettings(
            namespace="kvasir-test",
            watch_namespaces=(site.namespace,),
            router_namespace=site.namespace,
            router_admin_port=site.router.port,
            images=Images(cpu="cpu:1"),
            resync_seconds=1.0,
            lease_name=site.namespace,
            class_name=site.namespace,
            lease_seconds=60.0,
            host="127.0.0.1",
            metrics_port=port,
        )
        # Forks of a process that has imported it all: starting takes longer than what is tested
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["kvasir_operator.run"])

    async def run(self) -> list[str]:
        """Until one has nothing to write any more; then the resource is Ready. Returns what the
        others died of."""
        before = len(self._gateway.deaths)
        while True:
            self._operator = self._context.Process(target=run_until_stopped, args=(self._settings,))
            self._operator.start()
            self._gateway.victim = self._operator
            ended = await self._site.eventually(self._end_of_one)
            self._operator.kill()
            self._operator.join()
            await self._site.cluster.delete(LEASES, "kvasir-test", self._site.namespace)
            if ended == "rests":
                return self._gateway.deaths[before:]

    async def _end_of_one(self) -> str:
        await self._site.finish_downloads()
        found = await self._site.cluster.get(DEPLOYMENTS, self._site.namespace, "m") or {}
        assert (found.get("status") or {}).get("readyReplicas", 0) >= self.least_ready
        if not self._operator.is_alive():
            assert self._gateway.victim is None, "it ended before it wrote anything"
            return "died"
        resource = await self._site.get()
        ready = condition(resource, "Ready")
        current = ready.get("observedGeneration") == resource["metadata"]["generation"]
        rests = current and ready.get("status") == "True" and await self._looks() >= LOOKS
        return "rests" if rests else ""

    async def _looks(self) -> float:
        try:
            async with httpx.AsyncClient(timeout=60) as client:
                text = (await client.get(self._metrics)).text
        except httpx.TransportError:
            return 0.0
        found = _LOOKED.search(text)
        return float(found[1]) if found else 0.0


@pytest.mark.slow
async def test_killed_after_every_write_of_a_life(site: Any, gateway: Gateway) -> None:
    """From apply over a change to deletion: nothing is made twice, forgotten, or left."""
    relay = Relay(site, gateway, free_ports(1)[0])
    await site.apply(replicas=2, model=MODEL)
    assert set(await relay.run()) == FIRST
    assert len(await site.cluster.list(JOBS, site.namespace)) == 1
    pods = await site.engines()
    assert len(pods) == 2

    relay.least_ready = 2
    await site.apply(replicas=2, model=MODEL, engine={"args": ["--no-overlap"]})
    assert set(await relay.run()) == {"deployments", "llmdeployments/status", "pods/status"}
    new = await site.engines()
    assert len(new) == 2
    assert not {pod["metadata"]["uid"] for pod in pods} & {pod["metadata"]["uid"] for pod in new}
    assert all("--no-overlap" in pod["spec"]["containers"][0]["args"] for pod in new)

    await site.cluster.delete(LLMDEPLOYMENTS, site.namespace, "m")
    for kind in (DEPLOYMENTS, JOBS, CLAIMS, PODS):
        await site.eventually(nothing_left(site, kind), f"no {kind.plural}")


def nothing_left(site: Any, kind: Any) -> Callable[[], Any]:
    async def check() -> bool:
        return not await site.cluster.list(kind, site.namespace, "kvasir.dev/deployment=m")

    return check
