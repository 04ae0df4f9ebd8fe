"""Fields that the router reads of Kubernetes objects; everything else is skipped while decoding."""

import msgspec

from kvasir.resource import labels
from kvasir.resource.ownership.name_claims import NameClaim, read_claim, served_names
from kvasir_router.discovery.specs import FALLBACK_AFTER


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Without the resource version, so that objects which differ in nothing else are equal."""

    uid: str
    name: str
    namespace: str = ""
    creation_timestamp: str = ""
    """RFC 3339 in UTC: sorts as text."""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}


_ANNOTATIONS = {
    "tokenizer": "kvasir.dev/tokenizer",
    "custom_api": labels.CUSTOM_API,
    "leave": labels.LEAVE,
    "adapters": labels.ADAPTERS,
}


class Annotations(msgspec.Struct, frozen=True, rename=_ANNOTATIONS):
    """Annotations that the router knows."""

    tokenizer: str | None = None
    custom_api: str | None = None
    leave: str = ""
    adapters: str | None = None


class PodMetadata(Metadata, frozen=True, rename="camel"):
    annotations: Annotations = Annotations()


class ModelSource(msgspec.Struct, frozen=True):
    name: str | None = None
    aliases: tuple[str, ...] = ()


class Adapter(msgspec.Struct, frozen=True):
    name: str


class Router(msgspec.Struct, frozen=True, rename="camel"):
    policy: str | None = None
    hold_seconds: float | None = None
    tokenizer: str | None = None
    fallback_seconds: float = FALLBACK_AFTER


class SecretKey(msgspec.Struct, frozen=True):
    name: str
    key: str


class UpstreamKey(msgspec.Struct, frozen=True, rename="camel"):
    secret_ref: SecretKey | None = None


class UpstreamURL(msgspec.Struct, frozen=True, rename="camel"):
    url: str
    model: str | None = None
    key: UpstreamKey | None = None
    key_header: str = "authorization"
    ca_bundle: str | None = None
    server_name: str | None = None
    health_path: str | None = None


class ExternalPods(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str]
    port: int = 8000
    engine: str = "openai"
    model: str | None = None

    @property
    def selector(self) -> str:
        """Return the label selector of the pods."""
        return ",".join(f"{name}={value}" for name, value in sorted(self.match_labels.items()))


class External(msgspec.Struct, frozen=True):
    urls: tuple[UpstreamURL, ...] = ()
    pods: ExternalPods | None = None


class DeploymentSpec(msgspec.Struct, frozen=True, rename="camel"):
    model: ModelSource
    router: Router = Router()
    class_name: str | None = None
    external: External | None = None
    fallbacks: tuple[str, ...] = ()
    adapters: tuple[Adapter, ...] = ()


class Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class HeaderMatch(msgspec.Struct, frozen=True):
    name: str
    value: str


class Match(msgspec.Struct, frozen=True, rename="camel"):
    header: HeaderMatch | None = None
    key_id: str = ""


class ReportedSplit(msgspec.Struct, frozen=True, rename="camel"):
    """The operator's word on who gets a canary."""

    id: str
    revision: str
    weight: int | None = None
    matches: tuple[Match, ...] = ()
    min_samples: int = 500


class RolloutStatus(msgspec.Struct, frozen=True):
    split: ReportedSplit | None = None


class DeploymentStatus(msgspec.Struct, frozen=True, rename="camel"):
    class_name: str = ""
    """Class whose operator has taken the resource; "" = none has, or one from before there were
    classes and claims."""
    conditions: tuple[Condition, ...] = ()
    rollout: RolloutStatus | None = None


class LLMDeployment(msgspec.Struct, frozen=True):
    """A resource that its schema has checked: here only what routing needs."""

    metadata: Metadata
    spec: DeploymentSpec
    status: DeploymentStatus = DeploymentStatus()

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def urls(self) -> tuple[UpstreamURL, ...]:
        """Return the servers of others that serve it."""
        return self.spec.external.urls if self.spec.external is not None else ()

    @property
    def pods(self) -> ExternalPods | None:
        """Return which pods of others serve it."""
        return self.spec.external.pods if self.spec.external is not None else None

    @property
    def age(self) -> tuple[str, str]:
        """Return what sorts LLMDeployments, the oldest first."""
        return self.metadata.creation_timestamp, self.metadata.uid

    @property
    def names(self) -> list[str]:
        """Return the names it wants to be served under: the model's, then its aliases."""
        return served_names(self.metadata.name, self.spec.model.name, self.spec.model.aliases)

    @property
    def adapters(self) -> list[str]:
        """Return the names of its LoRA adapters."""
        return [each.name for each in self.spec.adapters]

    @property
    def verdict(self) -> str | None:
        """Return "True" or "False" as an operator has accepted it; None = none has judged it."""
        conditions = self.status.conditions
        return next((each.status for each in conditions if each.type == "Accepted"), None)


read_deployment = msgspec.json.Decoder(LLMDeployment).decode


def read_claim_object(raw: msgspec.Raw) -> NameClaim:
    """A ModelName. Raises msgspec.MsgspecError for one that no operator has made."""
    claim = read_claim(msgspec.json.decode(raw, type=dict))
    if claim is None:
        raise msgspec.ValidationError("a ModelName whose own name is not that of its claim")
    return claim


class ContainerPort(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class Container(msgspec.Struct, frozen=True):
    name: str
    ports: tuple[ContainerPort, ...] = ()


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[Container, ...]
    node_name: str = ""


class ContainerState(msgspec.Struct, frozen=True):
    running: dict[str, str] | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    restart_count: int = 0
    started: bool | None = None
    """True if its startup probe has succeeded since its last start."""
    state: ContainerState = ContainerState()


class PodCondition(Condition, frozen=True):
    reason: str | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(msgspec.Struct, frozen=True):
    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus = PodStatus()

    def has_condition(self, kind: str) -> bool:
        return self.reason_of(kind) is not None

    def reason_of(self, kind: str) -> str | None:
        """Return the reason of a condition that is True; None if it is not."""
        for each in self.status.conditions:
            if each.type == kind and each.status == "True":
                return each.reason or ""
        return None
