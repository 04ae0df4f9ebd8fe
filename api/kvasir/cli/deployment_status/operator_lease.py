"""Judge by its Lease whether the operator of an LLMDeploymentClass lives.

The class stays when its operator is gone, and so do statuses: only the Lease tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kvasir.kube import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.objects import parse_time
from kvasir.resource import labels
from kvasir.resource.ownership.deployment_class import PLURAL, class_of, read_class

_CLASSES = Kind(f"{labels.GROUP}/{labels.VERSION}", PLURAL, namespaced=False)
_LEASES = Kind("coordination.k8s.io/v1", "leases")
_DEFAULT_SECONDS = 15.0
"""Duration of a Lease that does not say its own."""
_POLL_SECONDS = 1.0

Object = Mapping[str, Any]


def lease_of(controller: str) -> tuple[str, str] | None:
    """Namespace and name of the Lease that `controller` (spec.controller of a class) names; None
    where it is no Kvasir operator's."""
    group, _, rest = controller.partition("/")
    namespace, _, name = rest.partition("/")
    return (namespace, name) if group == labels.GROUP and namespace and name else None


async def dead_operators(cluster: Cluster, resources: Sequence[Object]) -> list[str | None]:
    """Return why the operator of each of `resources` (LLMDeployments) idles, None if it does not.

    None also where that may not be read: a user of one namespace may see neither class nor Lease.
    """
    try:
        classes = {each["metadata"]["name"]: each for each in await cluster.list(_CLASSES, None)}
    except ApiError:
        return [None] * len(resources)
    known = [read_class(each) for each in classes.values()]
    wanted = [class_of(each, known) for each in resources]
    # Only theirs: a Lease that looks old takes seconds
    used = [name for name in classes if name in wanted]
    found = await asyncio.gather(*(_problem(cluster, classes[name]) for name in used))
    problems = dict(zip(used, found, strict=True))
    return [problems.get(name) for name in wanted]


async def _problem(cluster: Cluster, class_: Object) -> str | None:
    name, controller = class_["metadata"]["name"], str(class_["spec"]["controller"])
    place = lease_of(controller)
    if place is None:
        return None
    try:
        why = await why_dead(lambda: cluster.get(_LEASES, *place))
    except ApiError:
        return None
    if why is None:
        return None
    namespace, lease = place
    return (
        f"the operator of LLMDeploymentClass {name} is not at work: {why} Lease"
        f" {namespace}/{lease}; start it (kubectl get deployments,pods -n {namespace}), or delete"
        " the class if its release is gone"
    )


async def why_dead(
    read: Callable[[], Awaitable[Object | None]],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str | None:
    """Return what nobody does with the Lease that `read` gives, as words before its name; None
    while somebody holds it. Raises ApiError.

    This machine's clock may be wrong, so a Lease that looks old is watched for its duration: one
    that is renewed within it is held.
    """
    lease = await read()
    if lease is None or not _holder(lease):
        return "nobody holds"
    if _looks_renewed(lease):
        return None
    waited, version = 0.0, lease["metadata"]["resourceVersion"]
    while waited < _duration(lease):
        await pause(_POLL_SECONDS)
        waited += _POLL_SECONDS
        now = await read()
        if now is None or not _holder(now):
            return "nobody holds"
        if now["metadata"]["resourceVersion"] != version:
            return None
    return f"since {lease['spec'].get('renewTime', 'its start')} nobody has renewed"


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _duration(lease: Object) -> float:
    return float(lease["spec"].get("leaseDurationSeconds") or _DEFAULT_SECONDS)


def _looks_renewed(lease: Object) -> bool:
    try:
        renewed = parse_time(str(lease["spec"]["renewTime"]))
    except (KeyError, ValueError):
        return False
    age = (datetime.now(UTC) - renewed).total_seconds()
    # One of the future is a clock that is wrong
    return abs(age) <= _duration(lease)
