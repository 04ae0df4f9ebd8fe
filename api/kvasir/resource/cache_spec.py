"""`spec.cache`: the volume that holds the downloaded model, shared by all replicas."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kvasir.resource.field_types import (
    Image,
    LabelKey,
    LabelValue,
    ObjectName,
    Quantity,
    Text,
)
from kvasir.resource.pod_template import Toleration
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


class DownloadAmounts(StrictModel):
    """Amounts of CPU, memory and disk."""

    cpu: Quantity | None = None
    """CPU cores."""

    memory: Quantity | None = None
    """Main memory."""

    ephemeral_storage: Quantity | None = Field(alias="ephemeral-storage", default=None)
    """Space on the node's disk: logs and /tmp; the model is on its volume."""


class DownloadResources(StrictModel):
    """Resources of a download's pod."""

    requests: DownloadAmounts = DownloadAmounts(cpu="500m", memory="512Mi")
    """Resources set aside for it."""

    limits: DownloadAmounts = DownloadAmounts()
    """Maximum resources that it may use; none by default, but some quotas demand them."""


class DownloadAccount(StrictModel):
    """ServiceAccount of a download's pod, for clouds that give its name rights on a bucket."""

    model_config = rules(
        rule(
            "!has(self.name) || !has(self.annotations) || size(self.annotations) == 0",
            "annotations are of the ServiceAccount that is made; remove them or name",
        )
    )

    name: ObjectName | None = None
    """An existing ServiceAccount in the deployment's namespace."""

    annotations: Annotated[dict[LabelKey, Text], Field(max_length=32)] = {}
    """Annotations of a ServiceAccount that is made for the downloads alone, such as
    eks.amazonaws.com/role-arn."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name is not None and self.annotations:
            raise ValueError(
                "annotations are of the ServiceAccount that is made; remove them or name"
            )
        return self


class DownloadPod(StrictModel):
    """Settings of the pod that downloads the model. It needs no GPU: of podTemplate it has labels,
    annotations, pull secrets and tolerations, and of nodeSelector the architecture and where a
    volume is (zone, region, host name)."""

    image: Image | None = None
    """Image with `kvasir download`; by default the operator's for downloads."""

    resources: DownloadResources = DownloadResources()
    """Resources of the pod."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = {}
    """Further labels that a node must have."""

    tolerations: Annotated[list[Toleration], Field(max_length=32)] | None = None
    """Taints that the pod may run in spite of; podTemplate's if absent, since a volume of one node
    may be on an engine's."""

    service_account: DownloadAccount = DownloadAccount()
    """ServiceAccount of the pod; by default the engines', without a token."""

    deadline_seconds: Annotated[int, Field(ge=60, le=7 * 86400)] | None = None
    """Seconds after which a download that still runs counts as failed and is begun anew, keeping
    what it has; no limit by default."""


class Cache(StrictModel):
    """Volume in which a downloaded model is kept, on a cluster."""

    download: DownloadPod = DownloadPod()
    """The pod that downloads the model."""

    pvc: ClaimTemplate = ClaimTemplate()
    """The volume claim."""

    retention: Literal["Delete", "Retain"] = "Delete"
    """Delete: the new claim goes with the deployment. Retain: it stays, with the model in it."""
