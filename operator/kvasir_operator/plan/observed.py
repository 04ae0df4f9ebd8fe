"""What is known of one LLMDeployment and its surroundings when it is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from kvasir.models.download.progress import Progress
from kvasir.resource import LLMDeployment
from kvasir.resource.deployment_files import sentences
from kvasir_operator.objects import Object


def parse_resource(resource: Object) -> LLMDeployment | str:
    """The resource as its schema reads it, or sentences on what is wrong with it."""
    try:
        return LLMDeployment.from_cluster(resource)
    except ValidationError as error:
        return " ".join(f"{each}." for each in sentences(error))


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of the nodes that a deployment's pods may run on."""

    memory_bytes: int | None = None
    """Of the smallest GPU; None = it is not known."""
    gpus_per_node: int | None = None
    """Of the node with most; None = it is not known, 0 = no such node has any."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A moment's view, all that `plan` looks at."""

    resource: Object
    """The LLMDeployment as the API has it."""
    now: datetime
    deployment: Object | None = None
    """Its Deployment."""
    pods: tuple[Object, ...] = ()
    """Its engine pods."""
    jobs: tuple[Object, ...] = ()
    """All its download jobs, also those of former models."""
    job_pods: tuple[Object, ...] = ()
    """The pods of its download jobs."""
    claim: Object | None = None
    """The volume claim that its model lies on, or will."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """What running downloads last said of themselves, by the names of their Jobs."""
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    """uid and resourceVersion of each Secret that it names; None = there is no such Secret."""
    name_owners: Mapping[str, str] = field(default_factory=dict)
    """namespace/name of the deployment that has a name which this one wants too."""
    hardware: Hardware = Hardware()
    optional: frozenset[str] = frozenset()
    """Plurals of the optional kinds that the cluster has."""
    ready_routers: int = 0
    crd_lacks: tuple[str, ...] = ()
    """Fields that the installed CRD does not know."""
