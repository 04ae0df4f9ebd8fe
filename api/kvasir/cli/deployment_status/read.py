"""Read what is shown of deployments from a cluster."""

from __future__ import annotations

import asyncio

from kvasir.cli.deployment_status.deployment_view import DeploymentView, view_deployment
from kvasir.cli.deployment_status.operator_lease import dead_operators
from kvasir.cli.kubectl.cluster_session import (
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    ClusterSession,
    NotAllowedError,
    selector_of,
)
from kvasir.kube.objects import Object, name_of
from kvasir.resource import labels

_ROUTERS = f"{labels.COMPONENT}={labels.ROUTER}"


async def read_deployments(session: ClusterSession, name: str | None) -> list[DeploymentView]:
    """Return the deployments of the session's namespace, or the one called `name`. Raises
    ClusterError."""
    resources = await session.deployments(name)
    selector = selector_of(None if name is None else name_of(resources[0]))
    pods, claims, deployments, jobs, routers, dead = await asyncio.gather(
        session.find(PODS, selector=selector),
        session.find(CLAIMS, selector=selector),
        session.find(DEPLOYMENTS, selector=selector),
        session.find(JOBS, selector=selector),
        read_routers(session),
        dead_operators(session.cluster, resources),
    )
    return [
        view_deployment(each, pods, claims, operator, (*deployments, *jobs), routers)
        for each, operator in zip(resources, dead, strict=True)
    ]


async def read_routers(session: ClusterSession) -> list[Object] | None:
    """Return the pods of the routers, which mostly are in a namespace of their own; where no more
    may be read, those of the session's. None where that may not be read either."""
    everywhere = ClusterSession(session.cluster, None)
    for place in (everywhere, session):
        try:
            return await place.find(PODS, selector=_ROUTERS)
        except NotAllowedError:
            continue
    return None
