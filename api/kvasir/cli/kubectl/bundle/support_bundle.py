"""Collects a support bundle: objects, events, logs, status and metrics of what Kvasir makes.

What cannot be read is named in the bundle's errors.txt, and does not end it. No Secret and no
ConfigMap is ever asked for.
"""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import yaml

from kvasir import __version__
from kvasir.cli.deployment_status.read import read_deployments
from kvasir.cli.deployment_status.tree import WIDE_COLUMNS, make_tree
from kvasir.cli.kubectl.bundle.redaction import redact_log, redact_object, redact_secrets
from kvasir.cli.kubectl.cluster_session import (
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    LLMDEPLOYMENTS,
    PODS,
    ClusterError,
    ClusterSession,
)
from kvasir.cli.kubectl.explanation import EVENTS, explain_model
from kvasir.cli.kubectl.pod_logs import LogQuery, read_log
from kvasir.cli.printable import printable
from kvasir.kube import ApiError, Kind
from kvasir.kube.client import read_body
from kvasir.kube.objects import Object, label, name_of, namespace_of
from kvasir.resource import labels

_OWN = f"{labels.GROUP}/{labels.VERSION}"
OF_NAMESPACES = (
    DEPLOYMENTS,
    Kind("apps/v1", "replicasets"),
    JOBS,
    PODS,
    Kind("v1", "services"),
    CLAIMS,
    Kind("policy/v1", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "networkpolicies"),
    Kind("autoscaling/v2", "horizontalpodautoscalers"),
)
"""Kinds of what Kvasir makes; all that it makes carries the label of its component."""
OF_CLUSTER = (
    Kind(_OWN, "llmdeploymentclasses", namespaced=False),
    Kind(_OWN, "modelnames", namespaced=False),
    Kind("v1", "nodes", namespaced=False),
)
_RELEASE = f"{labels.COMPONENT} in ({labels.ROUTER},{labels.OPERATOR})"
_METRICS_PORTS = {labels.ENGINE: "8000", labels.ROUTER: "8081", labels.OPERATOR: "8080"}

_LINES = 5000
_LOG_BYTES = 4 * 1024 * 1024
_METRICS_BYTES = 8 * 1024 * 1024
MAX_BYTES = 256 * 1024 * 1024
"""Bytes of logs and metrics in all, before they are compressed."""

README = """\
A support bundle of Kvasir.

about.json      versions, and what was asked for
status.txt      models as `kubectl kvasir status -o wide` shows them, and why each is not ready
resources/      LLMDeployments and what was made of them, a file a kind
events.yaml     events of these
logs/           NAMESPACE/POD/CONTAINER.log, and .previous.log of the run before a restart
metrics/        NAMESPACE/POD.txt
errors.txt      what could not be read

Secrets and ConfigMaps were not read. Values of variables, tokens, passwords, keys, and what clients
wrote or were answered are replaced by REDACTED. Names of models, namespaces, nodes and images are
as they are: look through the files before you hand them on.
"""


class SupportBundle:
    """Writes one bundle into `archive`."""

    def __init__(
        self, session: ClusterSession, archive: tarfile.TarFile, *, logs: bool, metrics: bool
    ) -> None:
        self._session = session
        self._archive = archive
        self._logs, self._metrics = logs, metrics
        self._left = MAX_BYTES
        self.errors: list[str] = []
        """Sentences on what could not be read."""

    async def collect(self, name: str | None) -> None:
        """Write everything about the LLMDeployment or model `name`, by default of all. Raises
        ClusterError where the LLMDeployments themselves cannot be read."""
        resources = await self._session.deployments(name)
        only = None if name is None else name_of(resources[0])
        self._write("README.txt", README)
        self._write("about.json", json.dumps(await self._about(name), indent=2))
        self._write("status.txt", await self._status(resources))
        found = await self._objects(resources, only)
        self._write_yaml("events.yaml", await self._events(found))
        pods = [it for it in found if "containers" in (it.get("spec") or {})]
        for pod in pods:
            if self._logs:
                await self._pod_logs(pod)
            if self._metrics:
                await self._pod_metrics(pod)
        self._write("errors.txt", "".join(f"{redact_secrets(it)}\n" for it in self.errors))

    async def _about(self, name: str | None) -> dict[str, Any]:
        about: dict[str, Any] = {
            "kvasir": __version__,
            "collected": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": name,
            "namespace": self._session.namespace,
        }
        try:
            async with self._session.cluster.open("GET", "/version") as response:
                about["kubernetes"] = json.loads(await read_body(response, 1 << 20))
        except (ApiError, ValueError) as error:
            self.errors.append(f"the version of the cluster: {error}")
        return about

    async def _status(self, resources: Iterable[Object]) -> str:
        from rich.console import Console

        text = io.StringIO()
        console = Console(file=text, width=WIDE_COLUMNS, highlight=False, color_system=None)
        for resource in resources:
            place = ClusterSession(self._session.cluster, namespace_of(resource))
            try:
                [view] = await read_deployments(place, name_of(resource))
                console.print(make_tree(view, is_wide=True))
                explained = await explain_model(place, name_of(resource))
            except ClusterError as error:
                self.errors.append(f"the status of {name_of(resource)}: {error}")
                continue
            console.print(f"{explained.paragraph}\n", markup=False, soft_wrap=True)
        lines = (line.rstrip() for line in printable(text.getvalue()).splitlines())
        return redact_log("\n".join(lines))

    async def _objects(self, resources: list[Object], only: str | None) -> list[Object]:
        """Write and return the LLMDeployments and what belongs to them."""
        self._write_yaml(f"resources/{LLMDEPLOYMENTS.plural}.yaml", resources)
        release = await self._find(PODS, None, _RELEASE)
        own = {namespace_of(it) for it in resources}
        places = sorted(own | {namespace_of(it) for it in release})
        found = list(resources)
        for kind in OF_NAMESPACES:
            listed = [it for place in places for it in await self._find(kind, place)]
            kept = [it for it in listed if only is None or _belongs(it, only)]
            self._write_yaml(f"resources/{kind.plural}.yaml", kept)
            found += kept
        for kind in OF_CLUSTER:
            self._write_yaml(f"resources/{kind.plural}.yaml", await self._find(kind, None, ""))
        return found

    async def _find(
        self, kind: Kind, namespace: str | None, selector: str = labels.COMPONENT
    ) -> list[Object]:
        everywhere = ClusterSession(self._session.cluster, namespace)
        try:
            return await everywhere.find(kind, selector=selector)
        except ClusterError as error:
            self.errors.append(str(error))
            return []

    async def _events(self, objects: list[Object]) -> list[Object]:
        """Return the events about `objects`, the oldest first."""
        about = {(namespace_of(it), name_of(it)) for it in objects}
        found = [
            event
            for place in sorted({place for place, _ in about})
            for event in await self._find(EVENTS, place, "")
            if (place, (event.get("involvedObject") or {}).get("name")) in about
        ]
        return sorted(found, key=lambda it: str(it.get("lastTimestamp") or it.get("eventTime")))

    async def _pod_logs(self, pod: Object) -> None:
        for container, is_previous in _runs(pod):
            query = LogQuery(
                tail=_LINES, limit_bytes=_LOG_BYTES, previous=is_previous, timestamps=False
            )
            place, name = namespace_of(pod), name_of(pod)
            if not self._has_room(f"the log of {place}/{name}/{container}"):
                return
            try:
                # A server may cut at a line's end
                log = await read_log(
                    self._session, place, name, container, query, _LOG_BYTES + (1 << 16)
                )
            except ClusterError as error:
                self.errors.append(f"the log of {place}/{name}/{container}: {error}")
                continue
            end = ".previous.log" if is_previous else ".log"
            text = await asyncio.to_thread(redact_log, log.decode(errors="replace"))
            self._count(self._write(f"logs/{place}/{name}/{container}{end}", text))

    async def _pod_metrics(self, pod: Object) -> None:
        port = _METRICS_PORTS.get(label(pod, labels.COMPONENT))
        place, name = namespace_of(pod), name_of(pod)
        running = (pod.get("status") or {}).get("phase") == "Running"
        if port is None or not running or not self._has_room(f"the metrics of {place}/{name}"):
            return
        path = PODS.path(place, f"{name}:{port}", "proxy/metrics")
        try:
            async with self._session.cluster.open("GET", path) as response:
                text = (await read_body(response, _METRICS_BYTES)).decode(errors="replace")
        except ApiError as error:
            self.errors.append(f"the metrics of {place}/{name}: {error}")
            return
        self._count(self._write(f"metrics/{place}/{name}.txt", redact_secrets(text)))

    def _has_room(self, what: str) -> bool:
        if self._left <= 0:
            self.errors.append(f"{what}: left out, the bundle has {MAX_BYTES} bytes already")
        return self._left > 0

    def _count(self, size: int) -> None:
        self._left -= size

    def _write_yaml(self, name: str, objects: list[Object]) -> None:
        plain = [redact_object(it) for it in objects]
        self._write(name, yaml.safe_dump_all(plain, sort_keys=False, allow_unicode=True))

    def _write(self, name: str, text: str) -> int:
        """Add a file; its size."""
        content = text.encode()
        info = tarfile.TarInfo(f"kvasir-support/{name}")
        info.size, info.mode, info.mtime = len(content), 0o600, int(time.time())
        self._archive.addfile(info, io.BytesIO(content))
        return len(content)


def _belongs(it: Object, name: str) -> bool:
    """Tell if it is made for the LLMDeployment, or for all."""
    return label(it, labels.DEPLOYMENT) in ("", name)


def _runs(pod: Object) -> Iterator[tuple[str, bool]]:
    """Yield the containers that have begun, and True for the run before a restart."""
    status = pod.get("status") or {}
    for it in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        if int(it.get("restartCount") or 0):
            yield str(it["name"]), True
        if "waiting" not in (it.get("state") or {"waiting": {}}):
            yield str(it["name"]), False
