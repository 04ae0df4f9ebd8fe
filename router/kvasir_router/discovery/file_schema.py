"""Schema of a discovery file: each refusal names the field, the value and a remedy."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from kvasir.model_uri import MAX_URI_LENGTH, parse_model_uri
from kvasir.resource.engines.traits import CustomAPI, MetricNames
from kvasir_router.discovery.engine_apis import MODELS_PATH
from kvasir_router.discovery.specs import (
    FALLBACK_AFTER,
    OWN_ENGINES,
    CanarySpec,
    Departure,
    EngineKind,
    ModelSpec,
    PolicySpec,
    ReplicaSpec,
    Snapshot,
)
from kvasir_router.discovery.upstream_fields import UpstreamFields

Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Port = Annotated[int, Field(ge=1, le=65535)]
UrlPath = Annotated[str, Field(max_length=256, pattern=r"^/[-A-Za-z0-9._~/]*$")]
MetricName = Annotated[str, Field(max_length=128, pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
Weight = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileMetrics(_Strict):
    """Names of the series that tell an engine's load."""

    running: MetricName
    """Gauge of the requests that it computes."""
    waiting: MetricName | None = None
    """Gauge of the requests in its queue."""
    kv_usage: MetricName | None = None
    """Gauge of the share of its KV cache that is in use, 0 to 1."""
    prompt_tokens: MetricName | None = None
    """Histogram of prompts' lengths in tokens, without _sum and _count."""
    path: UrlPath = "/metrics"
    """Path of its metrics, in Prometheus' text format."""

    def names(self) -> MetricNames:
        waiting, usage = self.waiting, self.kv_usage
        return MetricNames(
            (self.running,),
            (waiting,) if waiting else (),
            (usage,) if usage else (),
            self.prompt_tokens or "",
        )


class FileReplica(UpstreamFields):
    """Engine by its base URL, and what it offers besides HTTP."""

    id: Name
    """Unique within its model."""
    draining: bool = False
    """Send it no new requests; let those in flight end."""
    departure: Departure = Departure.NONE
    """Its expected end: none, later (new requests go elsewhere where there is room) or now (streams
    go on elsewhere too)."""
    engine: EngineKind = EngineKind.KVASIR
    """Kind of engine; it decides what is read beside OpenAI's API. A router with a fleet secret
    wants it said, unless grpc_port says it: only a Kvasir engine is sent the secret."""
    grpc_port: Port | None = None
    """Port of a Kvasir engine's load and prompt reports. Without it the load is unknown."""
    kv_events: str | None = None
    """ZMQ address of its block events, `tcp://HOST:PORT`. Without it the router guesses what is
    cached from what it sent there."""
    kv_replay: str | None = None
    """ZMQ address where missed block events are asked for, `tcp://HOST:PORT`."""
    adapters: Annotated[tuple[Name, ...], Field(max_length=256)] | None = None
    """LoRA adapters that it holds, of its model's `adapters`; by default all."""
    ready_path: UrlPath | None = None
    """Path of an engine of kind openai that answers 200 once it serves; by default /v1/models."""
    metrics: FileMetrics | None = None
    """Metrics that tell the load of an engine of kind openai; by default none does."""
    node: Name | None = None
    """Machine it runs on. Retries go to another machine first."""

    @model_validator(mode="after")
    def _addresses(self) -> Self:
        self.check_upstream()
        if self.is_upstream and self.engine in OWN_ENGINES and self.says_engine:
            raise ValueError(
                f"engine {self.engine.value} has its API at the root and takes the router's name of"
                " the model; leave out the URL's path, model, key and the like"
            )
        for field, value in (("kv_events", self.kv_events), ("kv_replay", self.kv_replay)):
            if value is not None and not _is_zmq_address(value):
                raise ValueError(f"{field} {value!r} must be of the form tcp://HOST:PORT")
        if self.kv_replay is not None and self.kv_events is None:
            raise ValueError("kv_replay is of no use without kv_events; give that address too")
        if self.grpc_port is not None and self.engine is not EngineKind.KVASIR:
            raise ValueError(
                f"grpc_port is only for engine kvasir; leave it out with {self.engine.value}"
            )
        for field, given in (("ready_path", self.ready_path), ("metrics", self.metrics)):
            if given is not None and self.engine is not EngineKind.OPENAI:
                raise ValueError(
                    f"{field} is only for engine openai; leave it out with {self.engine.value}"
                )
        return self

    @property
    def says_engine(self) -> bool:
        """Return whether the file says what it is, rather than that nobody thought of it."""
        return not self.model_fields_set.isdisjoint(("engine", "grpc_port"))

    def spec(self) -> ReplicaSpec:
        """Raises UpstreamError."""
        url, upstream = self.parsed, self.upstream()
        apart = {"node", "ready_path", "metrics", *UpstreamFields.model_fields}
        given = self.model_dump(exclude=apart)
        if upstream is not None and not self.says_engine:
            given["engine"] = EngineKind.OPENAI
        return ReplicaSpec(
            host=url.host,
            port=url.port,
            tls=url.tls,
            node=self.node or "",
            custom=self._custom(),
            upstream=upstream,
            **given,
        )

    def _custom(self) -> CustomAPI | None:
        if self.ready_path is None and self.metrics is None:
            return None
        path = self.ready_path or MODELS_PATH
        if self.metrics is None:
            return CustomAPI(path)
        return CustomAPI(path, self.metrics.path, self.metrics.names())


class FileModel(_Strict):
    """A model under its name and aliases."""

    name: Name
    """Clients' name for it; each replica has to serve it."""
    aliases: tuple[Name, ...] = ()
    """Further names; each replica has to serve them too."""
    replicas: list[FileReplica] = []
    """Engines that serve it."""
    policy: str | None = None
    """Policy that chooses a replica, instead of the router's `--policy`."""
    policy_options: dict[str, Any] = {}
    """Options of this policy, over those that the router gives to all of its name."""
    adapters: tuple[Name, ...] = ()
    """LoRA adapters that its replicas serve, each a model to clients."""
    hold: Annotated[float, Field(ge=0, le=86400)] | None = None
    """Seconds that requests wait while no replica serves, instead of `--hold-timeout`."""
    tokenizer: Annotated[str, Field(min_length=1, max_length=MAX_URI_LENGTH)] | None = None
    """Directory or Hub id of the tokenizer, for engines that publish KV events but report no
    prompts (vLLM, SGLang). Without it their events do not count."""

    fallbacks: Annotated[tuple[Name, ...], Field(max_length=8)] = ()
    """Names of other models that a request goes to, in their order, where this one has no replica
    that serves, all of them failed, or none had room for `fallback_after`."""
    fallback_after: Annotated[float, Field(ge=0, le=600)] = FALLBACK_AFTER
    """Seconds that a request waits for a replica with room before it goes to a fallback."""

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo[Callable[[PolicySpec], None]]) -> Self:
        twice = _duplicate(replica.id for replica in self.replicas)
        if twice is not None:
            raise ValueError(f"replica id {twice!r} is used twice in model {self.name!r}")
        for replica in self.replicas:
            self._check_adapters(replica)
        if self.policy_options and self.policy is None:
            raise ValueError("policy_options are of no use without policy; name it too")
        if self.policy_spec is not None:
            info.context(self.policy_spec)
        if self.tokenizer is not None:
            self._check_tokenizer(self.tokenizer)
        return self

    def _check_adapters(self, replica: FileReplica) -> None:
        for name in replica.adapters or ():
            if name not in self.adapters:
                raise ValueError(
                    f"replica {replica.id!r} holds the adapter {name!r}, which model {self.name!r} "
                    "does not list; add it to the model's adapters, or leave it out"
                )
        if replica.model is not None and self.adapters and replica.adapters != ():
            raise ValueError(
                f"replica {replica.id!r} is asked for {replica.model!r} whatever a client names, so"
                f" it serves no adapter of model {self.name!r}; give it adapters: []"
            )

    def _check_tokenizer(self, tokenizer: str) -> None:
        parse_model_uri(tokenizer).require_local()
        if self.replicas and not any(replica.kv_events for replica in self.replicas):
            raise ValueError(
                f"tokenizer of model {self.name!r} is of no use: give its replicas kv_events too"
            )

    @property
    def policy_spec(self) -> PolicySpec | None:
        return None if self.policy is None else PolicySpec(self.policy, self.policy_options)

    @property
    def names(self) -> list[str]:
        return [self.name, *self.aliases, *self.adapters]

    def spec(self) -> ModelSpec:
        replicas = tuple(replica.spec() for replica in self.replicas)
        given = self.model_dump(exclude={"replicas", "policy", "policy_options"})
        return ModelSpec(replicas=replicas, policy=self.policy_spec, **given)


class FileCanary(_Strict):
    """Name for several models."""

    name: Name
    """Clients' name for it."""
    split: Annotated[dict[Name, Weight], Field(min_length=1, max_length=64)]
    """Weight of each model by name. Requests with one `user` stay with one model."""

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if not any(self.split.values()):
            raise ValueError(f"every weight of canary {self.name!r} is 0; raise one")
        return self


class FileConfig(_Strict):
    """The whole discovery file."""  # validated with the check of policies as context

    models: list[FileModel]
    """Models that the router serves."""
    canaries: list[FileCanary] = []
    """Names that stand for several models, split by weight."""

    @model_validator(mode="before")
    @classmethod
    def _dictionary(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            raise ValueError("must be a dictionary with key `models`")
        return content

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [name for model in self.models for name in model.names]
        twice = _duplicate([*names, *(canary.name for canary in self.canaries)])
        if twice is not None:
            raise ValueError(f"name {twice!r} is given to a model, alias, adapter or canary twice")
        models = {model.name for model in self.models}
        for canary in self.canaries:
            for name in canary.split.keys() - models:
                raise ValueError(f"canary {canary.name!r} splits to {name!r}, which is no model")
        for model in self.models:
            for name in set(model.fallbacks).difference(names, (it.name for it in self.canaries)):
                raise ValueError(
                    f"model {model.name!r} falls back to {name!r}, which is no model; correct the"
                    " name, or leave it out"
                )
        return self

    def unsaid_engine(self) -> str | None:
        """Return a sentence on a replica that does not say its engine, if there is one."""
        for model in self.models:
            for replica in model.replicas:
                if not (replica.says_engine or replica.is_upstream):
                    return (
                        f"replica {replica.id!r} of model {model.name!r} does not say its engine, "
                        "and Kvasir engines are sent the fleet secret; "
                        f"give it engine: {', '.join(kind.value for kind in EngineKind)}"
                    )
        return None

    def files(self) -> tuple[Path, ...]:
        """Return the further files that it names: keys and certificates of upstreams."""
        replicas = (replica for model in self.models for replica in model.replicas)
        return tuple(path for replica in replicas for path in replica.files())

    def snapshot(self) -> Snapshot:
        """Return the models and canaries in the file's order, models first. Raises
        UpstreamError."""
        return (
            *(model.spec() for model in self.models),
            *(CanarySpec(each.name, tuple(each.split.items())) for each in self.canaries),
        )


def _is_zmq_address(address: str) -> bool:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return False
    whole = not (parts.path or parts.query or parts.fragment or parts.username)
    return parts.scheme == "tcp" and parts.hostname not in (None, "*") and bool(port) and whole


def _duplicate(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
