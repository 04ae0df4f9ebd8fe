"""`spec.engine`: how the engine is run."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from kvasir.engine_values import (
    MAX_BATCHED_TOKENS,
    MAX_MEMORY_UTILIZATION,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    MAX_SEED,
    MIN_MEMORY_UTILIZATION,
    MIN_MODEL_LEN,
    BlockSize,
    Device,
    Dtype,
    KVCacheDtype,
    LoadFormat,
)
from kvasir.resource.field_types import (
    RESERVED_ENV,
    ByteCount,
    EnvName,
    Image,
    ObjectName,
    SecretKey,
    Text,
)
from kvasir.resource.strict_model import RULES, StrictModel, rule, rules

_RESERVED = "[" + ", ".join(f"'{name}'" for name in RESERVED_ENV) + "]"


class SecretKeyRef(StrictModel):
    """One key of a Secret in the deployment's namespace."""

    name: ObjectName
    """The Secret's name."""

    key: SecretKey
    """The key in it."""


class EnvSource(StrictModel):
    """Source of a variable's value."""

    secret_key_ref: SecretKeyRef
    """A key of a Secret; engines are restarted, one after the other, when it changes."""


class EnvVar(StrictModel):
    """One environment variable of the engine."""

    model_config = rules(
        rule(f"!(self.name in {_RESERVED})", "this variable is set by Kvasir; remove it"),
        rule("has(self.value) != has(self.valueFrom)", "give either value or valueFrom"),
    )

    name: EnvName
    """The variable's name."""

    value: Text | None = None
    """The variable's value."""

    value_from: EnvSource | None = None
    """Source of the value, on a cluster."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name in RESERVED_ENV:
            raise ValueError(f"{self.name} is set by Kvasir")
        if (self.value is None) == (self.value_from is None):
            raise ValueError(f"{self.name} needs either value or valueFrom")
        return self


MemoryUtilization = Annotated[
    float, Field(ge=MIN_MEMORY_UTILIZATION, le=MAX_MEMORY_UTILIZATION, allow_inf_nan=False)
]


class EngineConfig(StrictModel):
    """The engine's own settings; what is absent is the engine's default."""

    max_model_len: Annotated[int, Field(ge=MIN_MODEL_LEN, le=MAX_MODEL_LEN)] | None = None
    """Longest sequence, prompt and output together, in tokens; by default the model's own."""

    dtype: Dtype = "auto"
    """Type of weights and activations; auto is the model's own on a GPU and float32 on a CPU."""

    gpu_memory_utilization: MemoryUtilization | None = None
    """Share of each GPU's memory that the engine may use in all."""

    max_num_seqs: Annotated[int, Field(ge=1, le=MAX_NUM_SEQS)] | None = None
    """Maximum sequences that run at once."""

    max_num_batched_tokens: Annotated[int, Field(ge=1, le=MAX_BATCHED_TOKENS)] | None = None
    """Maximum tokens computed in one step, decodes and prompt chunks together."""

    block_size: BlockSize | None = None
    """Tokens of one KV block."""

    enable_prefix_caching: bool | None = None
    """Prefix caching: requests that begin alike share the KV of what they have in common."""

    device: Device = "auto"
    """Device that the engine runs on; `sim` computes nothing and answers as fast as its speed
    profile says. Its pods take the GPUs they ask for, to try out where real ones would go."""

    kv_cache_memory_bytes: ByteCount | None = None
    """Memory for KV on each device, in bytes or as a quantity (24Gi); by default what
    gpuMemoryUtilization leaves, or 1 GiB on a CPU."""

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    """Seeds the draw of the seeds of requests that bring none."""

    load_format: LoadFormat = "auto"
    """Format in which weights are read; `dummy` makes random ones, for benchmarks."""


_SET = "it is set by Kvasir"
_PLAIN = "probes and routers reach engine pods over plain HTTP"
RESERVED_FLAGS = {
    "--host": _SET,
    "--port": _SET,
    "--grpc-port": _SET,
    "--kv-events-endpoint": _SET,
    "--kv-events-replay-endpoint": _SET,
    "--fleet-secret-file": _SET,
    "--ssl-certfile": _PLAIN,
    "--ssl-keyfile": _PLAIN,
    "--served-model-name": "use spec.model.name and spec.model.aliases",
    "--revision": "use spec.model.revision",
    "--quantization": "use spec.model.quantization",
    "--kv-cache-dtype": "use spec.engine.kvCacheDtype",
    "--trust-remote-code": "use spec.model.trustRemoteCode",
    "--tensor-parallel-size": "use spec.parallelism.tensor",
    "--drain-timeout": "use spec.lifecycle.drainSeconds",
    **{
        prefix + name.replace("_", "-"): f"use spec.engine.config.{field.alias}"
        for name, field in EngineConfig.model_fields.items()
        for prefix in (("--", "--no-") if field.annotation == bool | None else ("--",))
    },
}
"""Engine flags that `spec.engine.args` may not carry, each with the field that does."""


def _flag(text: str) -> str:
    remedy = RESERVED_FLAGS.get(text.partition("=")[0])
    if remedy:
        raise ValueError(f"{text.partition('=')[0]} cannot be an extra argument: {remedy}")
    return text


def _flag_rule() -> dict[str, str]:
    remedies = ", ".join(f"'{flag}': '{remedy}'" for flag, remedy in RESERVED_FLAGS.items())
    name, table = "self.split('=', 2)[0]", f"{{{remedies}}}"
    return rule(
        f"!({name} in {list(RESERVED_FLAGS)})",
        "this flag has a field of its own or is set by Kvasir",
        message_expression=f"{name} + ' cannot be an extra argument: ' + {table}[{name}]",
    )


Argument = Annotated[
    str,
    StringConstraints(min_length=1, max_length=4096),
    AfterValidator(_flag),
    Field(json_schema_extra={RULES: [_flag_rule()]}),
]


class Engine(StrictModel):
    """Image, arguments, environment and settings of the engine."""

    image: Image | None = None
    """Image of the engine's container on a cluster; by default the operator's for the device."""

    args: Annotated[list[Argument], Field(max_length=64)] = []
    """Extra arguments of `kvasir serve`, as on a command line, for flags without a field."""

    env: Annotated[
        list[EnvVar],
        Field(
            max_length=64,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = []
    """Environment variables of the engine's processes; they replace those of the same name that
    Kvasir gives a pod, such as HOME and HF_HUB_OFFLINE."""

    kv_cache_dtype: KVCacheDtype = "auto"
    """Type of keys and values: fp8 (also fp8_e4m3) takes half the memory of 16 bits; auto is fp8
    where the checkpoint has KV scales and the GPU can, and else the type of the activations."""

    config: EngineConfig = EngineConfig()
    """The engine's own settings."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [variable.name for variable in self.env]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"env names {', '.join(sorted(twice))} more than once")
        return self
