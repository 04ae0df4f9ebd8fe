"""The LLMDeployment resource: what a user writes, with its bounds.

A field is here when it works; a field that would do nothing is refused as unknown.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from kvasir.llmdeployment.types import (
    RESERVED_ENV,
    Argument,
    ByteCount,
    DNSLabel,
    EnvName,
    GPUCount,
    Revision,
    ServedName,
    SourceURI,
    Text,
)
from kvasir.model_uri import ModelURI, parse_model_uri

API_VERSION = "kvasir.dev/v1alpha1"
KIND = "LLMDeployment"


class Part(BaseModel):
    """A part of the resource: camelCase fields, nothing unknown, no silent conversion."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )


class Metadata(Part):
    """The resource's name."""

    name: DNSLabel
    """Name of the deployment: a DNS label, unique in its namespace or file."""


class Model(Part):
    """The model to serve and the names it is served under."""

    uri: SourceURI
    """Where the model comes from: `hf://ORG/NAME[@REVISION]`, `builtin://kvasir-tiny`,
    `file:///DIRECTORY`, or a plain path or Hugging Face id."""

    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model; the repository's default branch if absent."""

    name: ServedName | None = None
    """Name that clients put into `model`; by default the deployment's."""

    aliases: Annotated[list[ServedName], Field(max_length=16)] = []
    """Further names of the same model."""

    trust_remote_code: bool = False
    """Allows Python code from the model's repository to run in the engine."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.revision is not None:
            parsed = self.parsed_uri
            if parsed.scheme != "hf":
                raise ValueError(f"revision has a meaning only with hf://, not with {self.uri!r}")
            if parsed.revision not in (None, self.revision):
                raise ValueError(
                    f"revision {self.revision!r} and the uri's {parsed.revision!r} differ; give one"
                )
        return self

    @property
    def parsed_uri(self) -> ModelURI:
        """`uri`, parsed."""
        return parse_model_uri(self.uri)


class EnvVar(Part):
    """One environment variable of the engine."""

    name: EnvName
    """The variable's name."""

    value: Text
    """Its value."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name in RESERVED_ENV:
            raise ValueError(f"{self.name} is set by Kvasir")
        return self


class EngineConfig(Part):
    """The engine's own settings; what is absent is the engine's default."""

    max_model_len: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Longest sequence, prompt and output together, in tokens; by default the model's own."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto is the model's own on a GPU and float32 on a CPU."""

    gpu_memory_utilization: Annotated[float, Field(ge=0.05, le=1.0, allow_inf_nan=False)] | None = (
        None
    )
    """Share of each GPU's memory that the engine may use in all."""

    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Most sequences that run at once."""

    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Most tokens computed in one step, decodes and prompt chunks together."""

    block_size: Literal[8, 16, 32, 64, 128] | None = None
    """Tokens of one KV block."""

    enable_prefix_caching: bool | None = None
    """Whether requests that begin alike share the KV of what they have in common."""

    device: Literal["auto", "cpu", "cuda", "sim"] = "auto"
    """What the engine runs on; `sim` computes nothing and answers as fast as its speed profile
    says."""

    kv_cache_memory_bytes: ByteCount | None = None
    """Memory for KV on each device, in bytes or as a quantity (24Gi); by default what
    gpuMemoryUtilization leaves, or 1 GiB on a CPU."""

    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    """Seeds the draw of the seeds of requests that bring none."""

    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    """How weights are read; `dummy` makes random ones, for benchmarks."""


class Engine(Part):
    """How the engine is run."""

    args: Annotated[list[Argument], Field(max_length=64)] = []
    """Extra arguments of `kvasir serve`, as on a command line, for flags without a field."""

    env: Annotated[list[EnvVar], Field(max_length=64)] = []
    """Environment variables of the engine's processes."""

    config: EngineConfig = EngineConfig()
    """The engine's own settings."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [variable.name for variable in self.env]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"env names {', '.join(sorted(twice))} more than once")
        return self


class Limits(Part):
    """Devices of one replica, as Kubernetes counts them."""

    gpus: GPUCount = Field(alias="nvidia.com/gpu", default=0)
    """GPUs of each replica; without any it runs on the CPU."""


class Resources(Part):
    """What one replica needs."""

    limits: Limits = Limits()
    """Devices of one replica."""


class Parallelism(Part):
    """How one replica is spread over its GPUs."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share every layer."""


class Lifecycle(Part):
    """How replicas end."""

    drain_seconds: Annotated[int, Field(ge=0, le=3600)] = 45
    """Seconds that running requests get to finish when a replica is stopped."""


class Spec(Part):
    """The wanted state."""

    model: Model
    """The model to serve."""

    engine: Engine = Engine()
    """How the engine is run."""

    resources: Resources = Resources()
    """What one replica needs."""

    parallelism: Parallelism = Parallelism()
    """How one replica is spread over its GPUs."""

    replicas: Annotated[int, Field(ge=0, le=64)] = 1
    """Number of engines."""

    lifecycle: Lifecycle = Lifecycle()
    """How replicas end."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        gpus, tensor = self.resources.limits.gpus, self.parallelism.tensor
        device = self.engine.config.device
        if gpus and gpus != tensor:
            raise ValueError(
                f"resources.limits nvidia.com/gpu is {gpus} but parallelism.tensor is {tensor};"
                " set both to the GPUs of one replica"
            )
        if device == "cuda" and not gpus:
            raise ValueError("engine.config.device cuda needs resources.limits nvidia.com/gpu")
        if device in ("cpu", "sim") and gpus:
            raise ValueError(
                f"engine.config.device {device} uses no GPU; remove resources.limits nvidia.com/gpu"
            )
        return self


class LLMDeployment(Part):
    """A model served by a number of engine replicas."""

    api_version: Literal["kvasir.dev/v1alpha1"]
    """The version of this schema."""

    kind: Literal["LLMDeployment"]
    """The kind of this resource."""

    metadata: Metadata
    """The resource's name."""

    spec: Spec
    """The wanted state."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = self.served_names
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"spec.model serves {', '.join(sorted(twice))} more than once")
        return self

    @property
    def name(self) -> str:
        """The deployment's name."""
        return self.metadata.name

    @property
    def served_names(self) -> list[str]:
        """Names that clients may use: the model's name first, then its aliases."""
        return [self.spec.model.name or self.metadata.name, *self.spec.model.aliases]
