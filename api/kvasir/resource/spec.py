"""`spec`: the wanted state, and the rules between its parts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir.resource.cache_spec import Cache
from kvasir.resource.engine_spec import Engine
from kvasir.resource.engines.engine_rules import ENGINE_RULES, engine_problems
from kvasir.resource.external.external_rules import EXTERNAL_RULES, external_problems
from kvasir.resource.external.external_spec import External
from kvasir.resource.field_types import (
    CIDR,
    DNSLabel,
    HubId,
    PodsOrPercent,
    ServedName,
    TensorSize,
)
from kvasir.resource.gpus.gpu_rules import GPU_RULES, gpu_problems
from kvasir.resource.gpus.resources_spec import Resources
from kvasir.resource.lora.lora_adapter import LoraAdapters
from kvasir.resource.lora.lora_rules import LORA_RULES, lora_problems
from kvasir.resource.model_spec import Model
from kvasir.resource.pod_template import PodTemplate
from kvasir.resource.rollout.rollout_spec import Rollout
from kvasir.resource.strict_model import StrictModel, rule, rules
from kvasir.resource.template_spec import Template

_URI_OR_EXTERNAL = (
    "model.uri is missing or not alone; give it, or external for a model that servers of others"
    " serve, and not both"
)
_NONE = ("0", "0%")


class Parallelism(StrictModel):
    """Parallelism of one replica over its GPUs."""

    tensor: TensorSize = 1
    """GPUs that share every layer, or auto: as few as the model needs, on a cluster; at most
    those of resources.limits, where they are given."""


class Lifecycle(StrictModel):
    """Seconds that starting and stopping a replica may take."""

    drain_seconds: Annotated[int, Field(ge=0, le=3600)] = 45
    """Seconds that running requests get to finish when a replica is stopped; what still runs then
    is moved to another one."""

    pre_stop_seconds: Annotated[int, Field(ge=0, le=300)] = 5
    """Seconds between the decision to stop a pod and its drain, in which routers turn away from
    it."""

    startup_seconds: Annotated[int, Field(ge=30, le=86400)] = 1800
    """Seconds that an engine may take to load before its container is started again."""


class RolloutStrategy(StrictModel):
    """Rollout of a new revision in place of the old one. Where the cluster has no GPU left for a
    surge pod, the operator gives up one replica at a time instead, and says so in a condition."""

    model_config = rules(
        rule(
            f"!(string(self.maxSurge) in {list(_NONE)})"
            f" || !(string(self.maxUnavailable) in {list(_NONE)})",
            "maxSurge and maxUnavailable cannot both be 0; raise one",
        )
    )

    max_surge: PodsOrPercent = 1
    """Pods of the new revision above replicas, or a share of them as 25%, rounded up."""

    max_unavailable: PodsOrPercent = 0
    """Pods that may be missing during a rollout, or a share of replicas as 25%, rounded down."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if str(self.max_surge) in _NONE and str(self.max_unavailable) in _NONE:
            raise ValueError("maxSurge and maxUnavailable cannot both be 0; raise one")
        return self


class Disruption(StrictModel):
    """Replicas that drains of nodes and other evictions may take away."""

    max_unavailable: PodsOrPercent = 1
    """Replicas that may be missing at once, or a share as 25%, rounded up. With one replica its
    eviction is allowed, and routers hold its requests until the next one serves."""


class Router(StrictModel):
    """Settings of the routers for the model."""

    policy: Literal["kv_aware", "least_load", "round_robin", "prefix_hash", "session"] | None = None
    """Policy by which a replica is chosen; by default the router's own."""

    hold_seconds: Annotated[int, Field(ge=0, le=86400)] | None = None
    """Seconds that requests wait in routers while no replica serves, such as until the first one
    has started; by default the routers' own, 60."""

    fallback_seconds: Annotated[int, Field(ge=0, le=600)] = 5
    """Seconds that requests wait for a replica with room before they go to one of
    spec.fallbacks."""

    tokenizer: HubId | None = None
    """Hub id of the model's tokenizer, as ORG/NAME[@REVISION], for engines of type vllm and sglang:
    they publish KV events then, and routers, which load the tokenizer, know what is in their caches
    instead of guessing it."""


class NetworkPolicy(StrictModel):
    """Network policy of the engines, where the cluster's network enforces it."""

    enabled: bool = True
    """Let only routers in (and the operator to a download's progress), engines nowhere out, and
    downloads to everything but the addresses of nodes' metadata services."""

    allowed_namespaces: Annotated[
        list[DNSLabel], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = []
    """Namespaces whose pods may reach the engines' HTTP port too, such as Prometheus'."""

    egress_namespaces: Annotated[
        list[DNSLabel], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = []
    """Namespaces whose pods engines may reach; by default none. An engine needs nobody: routers
    connect to it, and the model is on its volume."""

    egress_cidrs: Annotated[
        list[CIDR], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = []
    """Addresses that engines may reach, such as 192.0.2.0/24; by default none."""


class Monitoring(StrictModel):
    """Objects made for Prometheus, where its operator is installed."""

    pod_monitor: bool = True
    """A PodMonitor of the engines."""

    alerts: bool = True
    """A PrometheusRule."""


class Spec(StrictModel):
    """The wanted state."""

    model_config = rules(
        *GPU_RULES,
        rule(
            "type(self.parallelism.tensor) != string"
            " || self.model.uri.matches('^(hf|s3|oci|https)://') || !self.model.uri.contains('://')",
            "parallelism.tensor auto needs a model that is downloaded, to know its size; write a"
            " number",
        ),
        rule(
            "!has(self.cache) || self.model.uri.matches('^(hf|s3|oci|https)://')"
            " || !self.model.uri.contains('://')",
            "cache is for models that are downloaded; remove it",
        ),
        rule(
            "has(self.external) != (self.model.uri != '')",
            _URI_OR_EXTERNAL,
        ),
        rule(
            "!has(self.external)"
            " || !(has(self.autoscaling) || has(self.cache) || has(self.template))",
            "no engine is made for external; remove autoscaling, cache and template",
        ),
        rule(
            "has(self.external) == has(oldSelf.external)",
            "external cannot be set or removed later; make another LLMDeployment",
        ),
        rule(
            "!self.model.uri.startsWith('file://') || has(self.engine.image)",
            "file:// names a directory inside the engine's image; set engine.image, or use hf://,"
            " s3://, pvc://, oci:// or https://",
        ),
        *ENGINE_RULES,
        *EXTERNAL_RULES,
        *LORA_RULES,
    )

    class_name: DNSLabel | None = None
    """LLMDeploymentClass whose operator serves this, on a cluster; by default the cluster's default
    class. When it changes, the other operator takes over as soon as the first one has let go."""

    profile: DNSLabel | None = None
    """Profile of the class, which has GPUs, images and placement for what is not said here, on a
    cluster; by default the one that the class names. status.inherited tells what comes from it."""

    model: Model
    """The model to serve."""

    adapters: LoraAdapters | None = None
    """LoRA adapters of the model, each a name for clients. Engines load and unload them while they
    run; only the field itself restarts them, when it comes or goes. An empty list starts engines
    that are ready for adapters."""

    external: External | None = None
    """Servers of others that serve the model, in the place of engines: of these nothing may be said
    then (engine, resources, parallelism, podTemplate, profile, autoscaling, cache, template)."""

    fallbacks: Annotated[
        list[ServedName], Field(max_length=8, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = []
    """Names of other models that answer, in their order, a request for this one that has no replica
    that serves, whose replicas all failed before the first byte, or that waited for
    router.fallbackSeconds. A key may use those alone that it may use by name."""

    engine: Engine = Engine()
    """Type, image, arguments, environment and settings of the engine."""

    resources: Resources = Resources()
    """Resources that one replica needs."""

    parallelism: Parallelism = Parallelism()
    """Parallelism of one replica over its GPUs."""

    replicas: Annotated[int, Field(ge=0, le=64)] = 1
    """Number of engines. Autoscalers set it through the scale subresource; leave it out of files
    where one does."""

    autoscaling: Autoscaling | None = None
    """Autoscaling of replicas, on a cluster."""

    cache: Cache | None = None
    """Volume in which a downloaded model is kept, on a cluster; by default a new one of 100Gi."""

    lifecycle: Lifecycle = Lifecycle()
    """Seconds that starting and stopping a replica may take."""

    rollout_strategy: RolloutStrategy = RolloutStrategy()
    """Rollout of a new revision in place of the old one, on a cluster."""

    rollout: Rollout = Rollout()
    """The way of a new revision to all requests, on a cluster."""

    disruption: Disruption = Disruption()
    """Replicas that drains of nodes may take away, on a cluster."""

    router: Router = Router()
    """Settings of the routers for the model."""

    network_policy: NetworkPolicy = NetworkPolicy()
    """Network policy of the engines, on a cluster."""

    monitoring: Monitoring = Monitoring()
    """Objects made for Prometheus, on a cluster."""

    pod_template: PodTemplate = PodTemplate()
    """Settings of pods beside Kvasir's own, on a cluster."""

    template: Template | None = None
    """Anything else that a PodTemplate can have, merged over the engine pods' own: volumes,
    sidecars, init containers, security contexts and so on, on a cluster."""

    paused: bool = False
    """Leave everything as it is: the operator changes nothing but the status, on a cluster."""

    @model_validator(mode="after")
    def _check_external(self) -> Self:
        if (self.external is None) == (not self.model.uri):
            raise ValueError(_URI_OR_EXTERNAL)
        made = (self.autoscaling, self.cache, self.template)
        if self.external is not None and any(each is not None for each in made):
            raise ValueError(
                "no engine is made for external; remove autoscaling, cache and template"
            )
        return self

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.external is None and self.cache is not None and not self.model.downloaded:
            raise ValueError(
                f"cache is for models that are downloaded, not for {self.model.uri!r}; remove it"
            )
        for problem in (
            *external_problems(self),
            *gpu_problems(self),
            *engine_problems(self),
            *lora_problems(self),
        ):
            raise ValueError(problem)
        return self
