"""A plan in the making: what each step reads, and what it adds to."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvasir.resource import LLMDeployment, labels
from kvasir_operator.kinds import LLMDEPLOYMENTS
from kvasir_operator.objects import Object
from kvasir_operator.plan.conditions import Conditions
from kvasir_operator.plan.observed import Observed
from kvasir_operator.settings import OperatorSettings


@dataclass(slots=True)
class Draft:
    """Shared by the steps of one plan."""

    observed: Observed
    settings: OperatorSettings
    deployment: LLMDeployment
    conditions: Conditions
    manifests: list[Object] = field(default_factory=list)
    deletions: list[Object] = field(default_factory=list)
    status: Object = field(default_factory=dict)
    blocked: bool = False
    """Why engines must not be started or changed is in a condition; those that run go on."""
    tensor: int = 1
    """GPUs of one replica; 0 = it runs on the CPU."""
    scale: int | None = None
    """Replicas of the Deployment where nothing else of it may be changed."""
    requeue: float | None = None
    """Seconds after which to look again though nothing may have happened."""

    @property
    def name(self) -> str:
        """The LLMDeployment's name, and its Deployment's and Service's."""
        return self.deployment.name

    @property
    def namespace(self) -> str:
        """The LLMDeployment's namespace."""
        return self.deployment.metadata.namespace or ""

    @property
    def uid(self) -> str:
        """The LLMDeployment's uid."""
        return str(self.observed.resource["metadata"]["uid"])

    def look_again(self, seconds: float) -> None:
        """After `seconds`, or earlier if another step wants that."""
        self.requeue = seconds if self.requeue is None else min(self.requeue, seconds)

    def child(
        self,
        api_version: str,
        kind: str,
        name: str,
        *,
        component: str = labels.ENGINE,
        owned: bool = True,
        **content: object,
    ) -> Object:
        """A manifest of something made for this deployment, which goes when it goes."""
        metadata: Object = {
            "name": name,
            "namespace": self.namespace,
            "labels": labels.common_labels(self.name, component),
        }
        if owned:
            metadata["ownerReferences"] = [self._owner()]
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}

    def _owner(self) -> Object:
        return {
            "apiVersion": LLMDEPLOYMENTS.api_version,
            "kind": "LLMDeployment",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
