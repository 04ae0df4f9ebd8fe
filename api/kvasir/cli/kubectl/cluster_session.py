"""A cluster as a command reads it: each failure is one sentence with the verb and the resource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from kvasir.cli.errors import EXIT_USAGE, fail
from kvasir.cli.kubectl.cluster_options import ClusterChoice
from kvasir.kube import AccessError, ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.config import ClusterAccess, load_access
from kvasir.kube.objects import Object, name_of, namespace_of
from kvasir.resource import labels
from kvasir.resource.ownership.name_claims import names_of

LLMDEPLOYMENTS = Kind(f"{labels.GROUP}/{labels.VERSION}", labels.PLURAL)
DEPLOYMENTS = Kind("apps/v1", "deployments")
JOBS = Kind("batch/v1", "jobs")
PODS = Kind("v1", "pods")
CLAIMS = Kind("v1", "persistentvolumeclaims")

_SHOWN_NAMES = 20

Result = TypeVar("Result")


class ClusterError(Exception):
    """Something that the cluster does not have or does not allow; one sentence on what to do."""


class NotAllowedError(ClusterError):
    """The user lacks a right."""


class ClusterSession:
    """A cluster, and the namespace that is meant. Every method raises ClusterError."""

    def __init__(self, cluster: Cluster, namespace: str | None) -> None:
        self.cluster = cluster
        self.namespace = namespace
        """None = all."""

    @property
    def place(self) -> str:
        """The namespace in words."""
        return f"namespace {self.namespace}" if self.namespace else "the cluster"

    async def find(
        self, kind: Kind, namespace: str | None = None, selector: str = "", fields: str = ""
    ) -> list[Object]:
        """All objects of a kind, by default in the session's namespace."""
        place = namespace or self.namespace
        try:
            return await self.cluster.list(kind, place, selector, fields)
        except ApiError as error:
            raise explain(error, self.cluster.access, "list", kind, place) from error

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object; None where there is none."""
        try:
            return await self.cluster.get(kind, namespace, name)
        except ApiError as error:
            raise explain(error, self.cluster.access, "get", kind, namespace) from error

    async def annotate(self, resource: Object, annotations: Mapping[str, str]) -> Object:
        """Give an LLMDeployment annotations beside those it has; the object then."""
        namespace, name = namespace_of(resource), name_of(resource)
        body = {"metadata": {"annotations": dict(annotations)}}
        try:
            return await self.cluster.merge(LLMDEPLOYMENTS, namespace, name, body)
        except ApiError as error:
            access = self.cluster.access
            raise explain(error, access, "patch", LLMDEPLOYMENTS, namespace) from error

    async def deployments(self, name: str | None = None) -> list[Object]:
        """The LLMDeployments, or the one that is called `name` or serves that model."""
        found = await self.find(LLMDEPLOYMENTS)
        if name is None:
            return found
        chosen = [each for each in found if name_of(each) == name]
        chosen = chosen or [each for each in found if name in names_of(each)]
        if not chosen:
            raise ClusterError(self._absent(name, found))
        return chosen

    async def deployment(self, name: str) -> Object:
        """The one LLMDeployment that is called `name` or serves that model."""
        return (await self.deployments(name))[0]

    def _absent(self, name: str, found: Sequence[Object]) -> str:
        there = ", ".join(sorted(map(name_of, found))[:_SHOWN_NAMES]) or "none"
        return f"there is no LLMDeployment {name!r} in {self.place}; there is {there}"


@asynccontextmanager
async def open_session(choice: ClusterChoice) -> AsyncIterator[ClusterSession]:
    """Open the chosen cluster. Raises AccessError."""
    access = await load_access(choice.context, choice.environ)
    place = None if choice.everywhere else choice.namespace or access.namespace
    async with Cluster(access) as cluster:
        yield ClusterSession(cluster, place)


def in_cluster(
    choice: ClusterChoice, work: Callable[[ClusterSession], Awaitable[Result]]
) -> Result:
    """Return what `work` does; ends the command with a sentence when the cluster cannot be used."""

    async def run() -> Result:
        async with open_session(choice) as session:
            return await work(session)

    if choice.namespace is not None and choice.everywhere:
        fail("give either --namespace or --all-namespaces", EXIT_USAGE)
    try:
        return asyncio.run(run())
    except AccessError as error:
        fail(f"no cluster to ask: {error}", EXIT_USAGE)
    except ClusterError as error:
        fail(error)


def explain(
    error: ApiError, access: ClusterAccess, verb: str, kind: Kind, namespace: str | None
) -> ClusterError:
    """Return what the API server's refusal means for the user."""
    place = f"namespace {namespace}" if namespace else "the cluster"
    group, slash, _ = kind.api_version.partition("/")
    resource = f"{kind.plural}.{group}" if slash else kind.plural
    if error.status == 403:
        return NotAllowedError(
            f"you may not {verb} {resource} in {place}: {error}; have a Role with that verb bound"
            " to you, or name another namespace with -n"
        )
    if error.status == 401:
        return ClusterError(
            f"the cluster at {access.server} does not accept your credentials; log in again"
        )
    if error.status == 404 and group == labels.GROUP:
        return ClusterError(
            f"the cluster at {access.server} has no {resource}; install Kvasir there with helm"
            " install kvasir charts/kvasir"
        )
    if error.status == 0:
        return ClusterError(f"the cluster at {access.server} does not answer: {error}")
    return ClusterError(f"{verb} {resource} in {place} failed: {error}")


def selector_of(name: str | None) -> str:
    """Return the selector of what is made for the LLMDeployment, or for any."""
    return labels.DEPLOYMENT if name is None else f"{labels.DEPLOYMENT}={name}"
