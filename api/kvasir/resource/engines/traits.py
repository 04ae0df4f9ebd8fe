"""Traits of an engine type: how it is started, asked and stopped. No pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

EngineType = Literal["kvasir", "vllm", "sglang", "custom"]

Drain = Literal["flag", "sigterm", "wait"]
"""End of a replica. `flag`: after SIGTERM it ends what runs, within the seconds that a flag names.
`sigterm`: the same, for as long as it is let. `wait`: SIGTERM breaks what runs, so it is sent only
when the drain time is over."""

FlagName = str | tuple[str, str]
"""A flag that takes a value, or the two of a yes and a no; "" = nothing is said."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Names of the series of an engine's /metrics; the first one that there is counts."""

    running: tuple[str, ...] = ()
    """Requests that it computes."""
    waiting: tuple[str, ...] = ()
    """Requests in its queue."""
    kv_usage: tuple[str, ...] = ()
    """Share of its KV cache in use, 0 to 1."""
    prompt_tokens: str = ""
    """Histogram of prompts' lengths."""
    ttft: str = ""
    """Histogram of times to the first token, in seconds."""
    capacity: str = ""
    """Tokens that its KV cache holds."""
    cache_info: str = ""
    """Series with labels `block_size` and `num_gpu_blocks`, where nothing else tells that."""


@dataclass(frozen=True, slots=True)
class LoraAPI:
    """Loading of LoRA adapters into an engine that runs: requests in vLLM's form."""

    load_path: str = "/v1/load_lora_adapter"
    """Path that takes `lora_name` and `lora_path`."""
    unload_path: str = "/v1/unload_lora_adapter"
    """Path that takes `lora_name`."""
    enabling: tuple[str, ...] = ()
    """Flags without which it loads none."""
    sizes: tuple[str, ...] = ()
    """Flags, each with its value, that make room for adapters; none is given where the user gives
    one of them."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment without which it loads none."""


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """One engine type. A setting without a flag has no meaning for the type, and is refused."""

    program: tuple[str, ...] = ()
    """Command that begins its command line; empty = the user's."""
    is_entrypoint: bool = False
    """True if its image starts with the first word of `program`."""
    model: str = ""
    """Flag before the model's directory; "" = it stands alone."""
    flags: Mapping[str, FlagName] = field(default_factory=dict)
    """Flags by what they set."""
    values: Mapping[tuple[str, object], str] = field(default_factory=dict)
    """Values that it calls otherwise, by setting and value."""
    several_names: bool = True
    """True if it takes all served names, not the first alone."""
    always: tuple[str, ...] = ()
    """Flags that it is always given."""
    events: tuple[str, ...] = ()
    """Flags that let it publish KV events, with EVENTS and REPLAY in place of the addresses; empty
    = it is not told."""
    reserved: Mapping[str, str] = field(default_factory=dict)
    """Further flags and other spellings that users may not give, each with the remedy."""
    metrics: MetricNames = MetricNames()
    """Names of its metrics."""
    metrics_path: str = "/metrics"
    """Path of its metrics."""
    ready_path: str = "/health"
    """Path that answers 200 once it serves."""
    live_path: str = ""
    """Path that answers 200 while it is alive; "" = that its port is open has to do."""
    refuses_other_names: bool = False
    """True if it answers 404 to a name that it was not given."""
    drain: Drain = "wait"
    """End of a replica."""
    lora: LoraAPI = LoraAPI()
    """Loading of LoRA adapters."""
    contract: bool = False
    """True if it keeps the engine contract: load stream and prompt reports by gRPC, `resume`, the
    fleet secret."""


@dataclass(frozen=True, slots=True)
class CustomAPI:
    """Paths and names by which routers ask an engine of type custom, as its pods carry them in an
    annotation."""

    ready_path: str = "/health"
    """Path that answers 200 once it serves."""
    metrics_path: str = "/metrics"
    """Path of its metrics."""
    metrics: MetricNames | None = None
    """Names of the series that tell its load; None = none does."""
