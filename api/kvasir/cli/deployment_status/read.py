"""Read what is shown of deployments from a cluster."""

from __future__ import annotations

import asyncio

from kvasir.cli.deployment_status.deployment_view import DeploymentView, view_deployment
from kvasir.cli.deployment_status.operator_lease import dead_operators
from kvasir.kube import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.config import ClusterAccess, load_access
from kvasir.resource import labels

_DEPLOYMENTS = Kind(f"{labels.GROUP}/{labels.VERSION}", labels.PLURAL)
_PODS = Kind("v1", "pods")
_CLAIMS = Kind("v1", "persistentvolumeclaims")


class StatusError(Exception):
    """Status that cannot be shown; one sentence on why and what to do."""


async def read_deployments(
    context: str | None, namespace: str | None, name: str | None, *, everywhere: bool = False
) -> tuple[list[DeploymentView], str | None]:
    """Return the deployments in `namespace`, by default the context's, or the one called `name`;
    and the namespace, None where it is `everywhere`. Raises StatusError and AccessError."""
    access = await load_access(context)
    place = None if everywhere else namespace or access.namespace
    async with Cluster(access) as cluster:
        return await _read(cluster, place, name), place


async def _read(cluster: Cluster, namespace: str | None, name: str | None) -> list[DeploymentView]:
    try:
        resources = await cluster.list(_DEPLOYMENTS, namespace)
    except ApiError as error:
        raise StatusError(_explain(error, cluster.access, namespace)) from error
    if name is not None:
        known = [each["metadata"]["name"] for each in resources]
        resources = [each for each in resources if each["metadata"]["name"] == name]
        if not resources:
            there = ", ".join(known[:20]) or "none"
            raise StatusError(
                f"there is no LLMDeployment {name!r} in {_place(namespace)}; there is {there}"
            )
    selector = labels.DEPLOYMENT if name is None else f"{labels.DEPLOYMENT}={name}"
    try:
        pods, claims, dead = await asyncio.gather(
            cluster.list(_PODS, namespace, selector),
            cluster.list(_CLAIMS, namespace, selector),
            dead_operators(cluster, resources),
        )
    except ApiError as error:
        raise StatusError(f"pods and volume claims cannot be read: {error}") from error
    return [
        view_deployment(each, pods, claims, operator)
        for each, operator in zip(resources, dead, strict=True)
    ]


def _explain(error: ApiError, access: ClusterAccess, namespace: str | None) -> str:
    if error.status == 404:
        return (
            f"the cluster at {access.server} has no LLMDeployments; install Kvasir there with"
            " helm install kvasir charts/kvasir"
        )
    if error.status == 403:
        return f"you may not read LLMDeployments in {_place(namespace)}: {error}; try -n NAMESPACE"
    if error.status == 401:
        return f"the cluster at {access.server} does not accept your credentials; log in again"
    return f"the cluster at {access.server} does not answer: {error}"


def _place(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace else "the cluster"
