"""The ModelName resource: the claim of one LLMDeployment to one model name."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from kvasir.resource import labels
from kvasir.resource.field_types import DNSLabel, ServedName
from kvasir.resource.ownership.name_claims import Holder, claim_object_name
from kvasir.resource.strict_model import StrictModel, rule, rules

KIND: Final = "ModelName"
PLURAL: Final = "modelnames"


class ClaimedBy(StrictModel):
    """The LLMDeployment that has the name."""

    model_config = rules(
        rule(
            "self.__namespace__ == oldSelf.__namespace__ && self.name == oldSelf.name",
            "a claim does not change hands; delete the ModelName to set the name free",
        )
    )

    namespace: DNSLabel
    """Its namespace."""

    name: DNSLabel
    """Its name."""

    uid: Annotated[str, Field(min_length=1, max_length=128)]
    """Its uid; a deployment that was restored under its old name keeps the claim and gets its new
    uid written here."""


class ModelNameSpec(StrictModel):
    """A claim. No owner reference is possible: a cluster-scoped object with an owner in a namespace
    would be deleted by the garbage collector. The operator deletes it when its LLMDeployment is
    gone."""

    model_config = rules(
        rule(
            "self.name == oldSelf.name && self.className == oldSelf.className",
            "name and className of a claim cannot change; delete the ModelName instead",
        )
    )

    name: ServedName
    """The model name or alias, as clients write it."""

    class_name: DNSLabel
    """LLMDeploymentClass in which the name is unique."""

    claimed_by: ClaimedBy
    """The LLMDeployment that has the name."""


def claim_manifest(class_name: str, name: str, holder: Holder, uid: str) -> dict[str, Any]:
    """The ModelName by which `holder` claims `name`."""
    return {
        "apiVersion": f"{labels.GROUP}/{labels.VERSION}",
        "kind": KIND,
        "metadata": {
            "name": claim_object_name(class_name, name),
            "labels": {
                "app.kubernetes.io/managed-by": labels.MANAGER,
                labels.CLASS: class_name,
            },
        },
        "spec": {
            "name": name,
            "className": class_name,
            "claimedBy": {"namespace": holder.namespace, "name": holder.name, "uid": uid},
        },
    }
