"""Inputs and result of one step of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvasir.kube.objects import Object
from kvasir.resource import LLMDeployment, labels
from kvasir.resource.class_defaults.defaults_spec import Defaults
from kvasir.resource.spec import Spec
from kvasir_operator.kinds import LLMDEPLOYMENTS
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.observed import Observed
from kvasir_operator.settings import OperatorSettings
from kvasir_operator.spec_facts import Storage, storage_of


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Everything that a step reads beside the results of earlier steps."""

    deployment: LLMDeployment
    observed: Observed
    settings: OperatorSettings

    @property
    def spec(self) -> Spec:
        """The LLMDeployment's spec."""
        return self.deployment.spec

    @property
    def name(self) -> str:
        """The LLMDeployment's name, and its Deployment's and Service's."""
        return self.deployment.name

    @property
    def namespace(self) -> str:
        """The LLMDeployment's namespace."""
        return self.deployment.metadata.namespace or ""

    @property
    def defaults(self) -> Defaults:
        """The class' values that no field of the spec stands for."""
        inherited = self.observed.inherited
        return inherited.defaults if inherited is not None else Defaults()

    @property
    def storage(self) -> Storage:
        """The place of the model that engines read."""
        return storage_of(self.spec, self.name)

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
        """Return a manifest made for this deployment; `owned` = deleted together with it."""
        metadata: Object = {
            "name": name,
            "namespace": self.namespace,
            "labels": labels.common_labels(self.name, component),
        }
        if owned:
            controller = {"controller": True, "blockOwnerDeletion": True}
            metadata["ownerReferences"] = [{**self._owner(), **controller}]
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}

    def shared_child(self, api_version: str, kind: str, name: str, **content: object) -> Object:
        """Return a manifest that each deployment of the namespace applies, as one of its owners:
        it is deleted with the last of them."""
        metadata: Object = {
            "name": name,
            "namespace": self.namespace,
            "labels": labels.shared_labels(),
            "ownerReferences": [self._owner()],
        }
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}

    def _owner(self) -> Object:
        return {
            "apiVersion": LLMDEPLOYMENTS.api_version,
            "kind": "LLMDeployment",
            "name": self.name,
            "uid": self.observed.uid,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Contribution of one step to the plan."""

    manifests: tuple[Object, ...] = ()
    """Objects that shall exist, in the order in which they are made."""
    deletions: tuple[Object, ...] = ()
    """Objects to delete."""
    conditions: tuple[ConditionValue, ...] = ()
    """Conditions of the status, in their order there."""
    status: Mapping[str, object] = field(default_factory=dict)
    """Other fields of the status."""
    blocked: bool = False
    """Engines must not be started or changed, for the reason in a condition; running ones stay."""
    requeue: float | None = None
    """Seconds after which to plan again though nothing may have happened."""
