"""`spec.cache`: the volume that holds the downloaded model, shared by all replicas."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kvasir.resource.field_types import ObjectName, Quantity
from kvasir.resource.strict_model import StrictModel, rule, rules

AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]
DEFAULT_SIZE = "100Gi"


class ClaimTemplate(StrictModel):
    """The volume claim: an existing one, or what a new one asks for."""

    model_config = rules(
        rule(
            "!has(self.claimName)"
            " || !(has(self.size) || has(self.storageClassName) || has(self.accessModes))",
            "claimName names an existing claim; remove size, storageClassName and accessModes",
        ),
        rule(
            "!has(self.size) || !has(oldSelf.size)"
            " || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "a volume cannot shrink; give it its old size or a larger one",
        ),
        rule(
            "has(self.claimName) || has(oldSelf.claimName)"
            " || (has(self.storageClassName) == has(oldSelf.storageClassName)"
            " && (!has(self.storageClassName)"
            " || self.storageClassName == oldSelf.storageClassName))",
            "storageClassName of an existing volume cannot change; make a new claim and name it"
            " in claimName",
        ),
        rule(
            "has(self.claimName) || has(oldSelf.claimName)"
            " || (has(self.accessModes) == has(oldSelf.accessModes)"
            " && (!has(self.accessModes) || self.accessModes == oldSelf.accessModes))",
            "accessModes of an existing volume cannot change; make a new claim and name it in"
            " claimName",
        ),
    )

    claim_name: ObjectName | None = None
    """An existing claim in the deployment's namespace; it is never deleted by Kvasir."""

    size: Quantity | None = None
    """Size of the new volume, 100Gi by default; it may grow later if its class allows that."""

    storage_class_name: ObjectName | None = None
    """Class of the new volume; the cluster's default class if absent."""

    access_modes: (
        Annotated[
            list[AccessMode],
            Field(min_length=1, max_length=2, json_schema_extra={"x-kubernetes-list-type": "set"}),
        ]
        | None
    ) = None
    """ReadWriteOnce (the default) ties all replicas to one node; ReadWriteMany needs a shared file
    system and lets them run on several."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        new = (self.size, self.storage_class_name, self.access_modes)
        if self.claim_name is not None and any(field is not None for field in new):
            raise ValueError(
                "claimName names an existing claim; remove size, storageClassName and accessModes"
            )
        return self


class Cache(StrictModel):
    """Volume in which a downloaded model is kept, on a cluster."""

    pvc: ClaimTemplate = ClaimTemplate()
    """The volume claim."""

    retention: Literal["Delete", "Retain"] = "Delete"
    """Delete: the new claim goes with the deployment. Retain: it stays, with the model in it."""
