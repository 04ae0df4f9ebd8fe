"""`spec.engine`: how the engine is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

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
from kvasir.resource.engines.engine_types import ENGINE_TYPES, reserved_flags
from kvasir.resource.engines.environment_spec import Environment
from kvasir.resource.engines.served_api_spec import CustomMetrics, CustomPorts, Probes
from kvasir.resource.engines.traits import CustomAPI, EngineTraits, EngineType, MetricNames
from kvasir.resource.field_types import ByteCount, Image
from kvasir.resource.strict_model import StrictModel, rule, rules

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


_NEEDS_PROGRAM = (
    "engine.type custom needs engine.image, on a cluster, or engine.command; nothing else says what"
    " to start"
)
_SIM = "engine.config.device sim is Kvasir's own engine; remove it, or engine.type"
_FOR_CUSTOM = ("command", "ports", "metrics", "drainsOnSigterm")
_WORDS = {
    "command": "the other types have their own; use args",
    "ports": "the other types' are set by Kvasir",
    "metrics": "the other types' are known",
    "drainsOnSigterm": "the other types' is known",
}
_PROBES = ("startup", "readiness", "liveness")


def _argument_rule(kind: EngineType) -> dict[str, str]:
    flags = reserved_flags(ENGINE_TYPES[kind])
    remedies = ", ".join(f"'{flag}': '{remedy}'" for flag, remedy in flags.items())
    taken = f"self.args.map(it, it.split('=', 2)[0]).filter(it, it in {list(flags)})"
    told = f"{taken}[0] + ' cannot be an extra argument: ' + {{{remedies}}}[{taken}[0]]"
    return rule(
        f"self.type != '{kind}' || !has(self.args) || size({taken}) == 0",
        "args has a flag that has a field of its own or is set by Kvasir",
        message_expression=told,
    )


def _meaningless(kind: EngineType) -> Iterator[tuple[str, str]]:
    """Yield the fields of `config` that a type has no flag for, with their CEL condition."""
    flags = ENGINE_TYPES[kind].flags
    for name, field in EngineConfig.model_fields.items():
        if name not in flags and name != "device":
            path = f"self.config.{field.alias}"
            plain = f"!has({path})" if field.default is None else f"{path} == '{field.default}'"
            yield str(field.alias), plain


def _config_rule(kind: EngineType) -> dict[str, str]:
    names, plain = zip(*_meaningless(kind), strict=True)
    told = "config" if kind == "custom" else f"config.{', '.join(names)}"
    return rule(f"self.type != '{kind}' || ({' && '.join(plain)})", _no_meaning(told, kind))


def _no_meaning(name: str, kind: EngineType) -> str:
    how = "use engine.args" if kind == "custom" else "remove it"
    return f"engine.{name} has no meaning with engine.type {kind}; {how}"


Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Engine(Environment):
    """Type, image, arguments, environment and settings of the engine."""

    model_config = rules(
        # The other types' may be the class'
        rule(
            "self.type != 'custom' || has(self.image)",
            "engine.type custom needs engine.image on a cluster; set it",
        ),
        *(_argument_rule(kind) for kind in ENGINE_TYPES if reserved_flags(ENGINE_TYPES[kind])),
        *(_config_rule(kind) for kind in ENGINE_TYPES if any(_meaningless(kind))),
        rule(
            "self.type == 'kvasir' || self.config.device != 'sim'",
            _SIM,
        ),
        rule(
            "self.type != 'custom' || self.kvCacheDtype == 'auto'",
            _no_meaning("kvCacheDtype", "custom"),
        ),
        *(
            rule(
                f"self.type == 'custom' || !has(self.{name})"
                + (" || size(self.command) == 0" if name == "command" else ""),
                f"engine.{name} is for engine.type custom: {_WORDS[name]}",
            )
            for name in _FOR_CUSTOM
        ),
        *(
            rule(
                f"self.type == 'custom' || !has(self.probes) || !has(self.probes.{name}.path)",
                f"engine.probes.{name}.path is for engine.type custom; remove it",
            )
            for name in _PROBES
        ),
    )

    type: EngineType = "kvasir"
    """Kind of engine: Kvasir's own, vLLM, SGLang, or custom for another one that speaks OpenAI's
    API. It decides the command line, the probes, the metrics and what routers expect."""

    image: Image | None = None
    """Image of the engine's container on a cluster; by default the class' for the type, or
    the operator's for the device, of type kvasir."""

    command: Annotated[list[Argument], Field(max_length=64)] = []
    """Command of an engine of type custom, on a cluster by default the image's own. In it and in
    args $(KVASIR_MODEL), $(KVASIR_SERVED_NAME), $(KVASIR_HOST), $(KVASIR_PORT) and
    $(KVASIR_TENSOR_PARALLEL_SIZE) stand for the model's directory and so on."""

    args: Annotated[list[Argument], Field(max_length=64)] = []
    """Extra arguments of the engine's command, for flags without a field."""

    ports: CustomPorts | None = None
    """Ports of an engine of type custom, on a cluster."""

    probes: Probes | None = None
    """Probes of the engine, where they differ from the type's."""

    metrics: CustomMetrics | None = None
    """Metrics that tell the load of an engine of type custom."""

    drains_on_sigterm: bool | None = None
    """True if an engine of type custom ends what runs when it gets SIGTERM, as uvicorn does. By
    default it does not: then it is sent SIGTERM only when lifecycle.drainSeconds are over."""

    kv_cache_dtype: KVCacheDtype = "auto"
    """Type of keys and values: fp8 (also fp8_e4m3) takes half the memory of 16 bits; auto is fp8
    where the checkpoint has KV scales and the GPU can, and else the type of the activations."""

    config: EngineConfig = EngineConfig()
    """The engine's own settings."""

    @property
    def traits(self) -> EngineTraits:
        """The traits of the type."""
        return ENGINE_TYPES[self.type]

    @property
    def custom_api(self) -> CustomAPI:
        """Paths and names of metrics, of type custom."""
        probes, names = self.probes or Probes(), self.metrics
        ready = probes.readiness.path or self.traits.ready_path
        if names is None:
            return CustomAPI(ready)
        one = MetricNames(
            (names.running,),
            (names.waiting,) if names.waiting else (),
            (names.kv_usage,) if names.kv_usage else (),
            names.prompt_tokens or "",
        )
        return CustomAPI(ready, names.path, one)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        flags = reserved_flags(self.traits)
        for flag in (argument.partition("=")[0] for argument in self.args):
            if flag in flags:
                yield f"{flag} cannot be an extra argument: {flags[flag]}"
        given = self.model_dump(by_alias=True, exclude_defaults=True)
        for name, _ in _meaningless(self.type):
            if name in given.get("config", {}):
                yield _no_meaning(f"config.{name}", self.type)
        if self.type != "kvasir" and self.config.device == "sim":
            yield _SIM
        yield from self._custom_problems() if self.type == "custom" else _custom_only(given)

    def _custom_problems(self) -> Iterator[str]:
        if self.image is None and not self.command:
            yield _NEEDS_PROGRAM
        if self.kv_cache_dtype != "auto":
            yield _no_meaning("kvCacheDtype", "custom")


def _custom_only(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each field of type custom among those that were `given`."""
    for name in _FOR_CUSTOM:
        if name in given:
            yield f"engine.{name} is for engine.type custom: {_WORDS[name]}"
    for name in _PROBES:
        if "path" in given.get("probes", {}).get(name, {}):
            yield f"engine.probes.{name}.path is for engine.type custom; remove it"
