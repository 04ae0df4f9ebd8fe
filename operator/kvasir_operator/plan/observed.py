"""State of one LLMDeployment and its surroundings when it is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from kvasir.kube.objects import Object
from kvasir.models.download.progress import Progress
from kvasir.resource import LLMDeployment
from kvasir.resource.class_defaults.inheritance import Inheritance
from kvasir.resource.deployment_files import sentences
from kvasir.wire.canary_samples import CanarySamples


def parse_resource(resource: Object, inherited: Inheritance | None = None) -> LLMDeployment | str:
    """Return the resource as its schema reads it, completed by its class, or sentences on what is
    wrong with it. Without the profile that it names it is not completed."""
    if inherited is None or inherited.problem:
        return _parse(resource)
    found = _parse({**resource, "spec": inherited.spec})
    if isinstance(found, str) and not isinstance(_parse(resource), str):
        return f"With what {inherited.words} gives: {found}"
    return found


def _parse(resource: Object) -> LLMDeployment | str:
    try:
        return LLMDeployment.from_cluster(resource)
    except ValidationError as error:
        return " ".join(f"{each}." for each in sentences(error))


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of the nodes that a deployment's pods may run on."""

    memory_bytes: int | None = None
    """Memory of the smallest GPU; None = not known."""
    gpus_per_node: int | None = None
    """GPUs of the node with the most; None = not known, 0 = no such node has any."""
    capability: tuple[int, int] | None = None
    """Compute capability of the oldest GPU; None = not known."""


@dataclass(frozen=True, slots=True)
class ScalingProblem:
    """Reason why the operator does not scale a model."""

    message: str = ""
    """A clause; "" = nothing does."""
    by: str = ""
    """Another autoscaler that scales it; "" = none."""


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """A server of others, as the routers that answer see it."""

    url: str
    """Its base URL."""
    is_ready: bool
    """True if every one of them sends requests there."""
    problem: str = ""
    """Clause on why one of them does not; "" = none has told."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that `plan` looks at, as it is at one moment."""

    resource: Object
    """The LLMDeployment as the API has it."""
    now: datetime
    deployment: Object | None = None
    """Its Deployment."""
    canary_deployment: Object | None = None
    """The Deployment of its canary."""
    canary_samples: CanarySamples | None = None
    """Samples that the routers have counted under the split of its status; None = none."""
    pods: tuple[Object, ...] = ()
    """Its engine pods."""
    jobs: tuple[Object, ...] = ()
    """All its download jobs, also those of former models."""
    job_pods: tuple[Object, ...] = ()
    """The pods of its download jobs."""
    claim: Object | None = None
    """The volume claim for its model."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """Last reports of running downloads, by the names of their Jobs."""
    same_downloads: tuple[Object, ...] = ()
    """Jobs of other LLMDeployments that download the same model onto the same volume."""
    refused_pods: Mapping[str, str] = field(default_factory=dict)
    """Reasons why download jobs get no pod, by the names of those Jobs."""
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    """uid and resourceVersion of each Secret that it names; "" = one that may not be read, whose
    changes are not seen; None = no such Secret exists."""
    names_lost: Mapping[str, str] = field(default_factory=dict)
    """Names that it wants and another LLMDeployment has claimed, each with its holder as
    namespace/name."""
    unknown_fallbacks: tuple[str, ...] = ()
    """Names of spec.fallbacks that no LLMDeployment has claimed, and none of KServe's pods has."""
    upstreams: tuple[UpstreamState, ...] = ()
    """Servers of spec.external, in its order."""
    unserved: str = ""
    """Sentence on why the class that it names now will not serve it; "" = one will."""
    inherited: Inheritance | None = None
    """Values that the class gives; None = the class is not known."""
    class_problem: str = ""
    """Sentence on why the class cannot be read; "" = it can."""
    class_made_again: bool = False
    """The class was lost and made again, and nobody has said that it is as it should be."""
    ca_bundle_problem: str = ""
    """Clause on why the class' certificates cannot be mounted; "" = none is known."""
    hardware: Hardware = Hardware()
    optional: frozenset[str] = frozenset()
    """Plurals of the optional kinds that the cluster has."""
    autoscaler: Object | None = None
    """Its ScaledObject or HorizontalPodAutoscaler, where one is wanted."""
    scaling: ScalingProblem | None = None
    """Reason why the operator does not scale it; None = it has not been looked at yet."""
    ready_routers: int = 0
    """Router pods that get requests."""
    silent_routers: tuple[str, ...] = ()
    """Names of those that did not answer when they were asked whom they serve."""
    crd_lacks: tuple[str, ...] = ()
    """Fields that the installed CRD does not know."""

    @property
    def uid(self) -> str:
        """The LLMDeployment's uid."""
        return str(self.resource["metadata"]["uid"])

    @property
    def status(self) -> Object:
        """The LLMDeployment's status before this plan; empty = it has none."""
        return self.resource.get("status") or {}

    @property
    def generation(self) -> int:
        """The LLMDeployment's generation; 0 = it has none."""
        return int(self.resource["metadata"].get("generation") or 0)
