"""The engine's settings, as small dataclasses: the one table of the flags of `kvasir serve` that
concern the engine (those of its server are in `server.settings`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args

from kvasir.cli.flags import flag, group
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
    QuantizationName,
)
from kvasir.models.config_overrides import ConfigOverrides, read_overrides
from kvasir.models.hf_config import ConfigError
from kvasir_engine.errors import UserError
from kvasir_engine.serve_panels import CACHE, HTTP, MODEL, OPS, STEP

ModelImpl = Literal["auto", "native", "transformers"]
KernelChoice = Literal["auto", "torch"]
GrammarLibrary = Literal["auto", "xgrammar", "llguidance"]
SchedulingPolicy = Literal["fcfs", "priority"]
NO_SPEED_PROFILE = "instant"
"""Default of --speed-profile: a step takes no time."""


class SettingsError(UserError):
    """A setting cannot work; the message names the flag and the remedy."""


def _check_bounds(settings: object, **bounds: tuple[int, int]) -> None:
    """Raise SettingsError for the first of these fields that is out of its bounds; None is not."""
    for name, (low, high) in bounds.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            flag_name = name.replace("_", "-")
            raise SettingsError(f"--{flag_name} must be {bound}, got {value}.")


def _check_choices(settings: object, **choices: Any) -> None:
    """Raise SettingsError for the first of these fields that is none of its Literal's values."""
    for name, choice in choices.items():
        value = getattr(settings, name)
        if value not in get_args(choice):
            known = ", ".join(get_args(choice))
            flag_name = name.replace("_", "-")
            raise SettingsError(f"--{flag_name} must be one of {known}, got {value!r}.")


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Bounds of a step and of the queue."""

    max_num_seqs: int = flag(256, "Sequences that run at once.", STEP)
    """Rows of the persistent batch: sequences that run at once."""
    max_num_batched_tokens: int = flag(8192, "Tokens of one step, prompts and outputs.", STEP)
    """Tokens computed by one step, decodes and prompt chunks together."""
    long_prefill_token_threshold: int = flag(
        0, "Most tokens of one prompt in a step; 0 = any.", STEP
    )
    """Maximum tokens of one prompt in one step; 0 = as many as the budget holds."""
    policy: SchedulingPolicy = flag("fcfs", "Who is served first.", STEP, name="scheduling_policy")
    max_queued_requests: int = flag(4096, "Requests that may wait; beyond: 429.", STEP)
    """Requests that may wait; one more is refused with 429."""

    def __post_init__(self) -> None:
        _check_bounds(
            self,
            max_num_seqs=(1, MAX_NUM_SEQS),
            max_num_batched_tokens=(1, MAX_BATCHED_TOKENS),
            long_prefill_token_threshold=(0, sys.maxsize),
            max_queued_requests=(1, sys.maxsize),
        )
        if self.policy not in get_args(SchedulingPolicy):
            raise SettingsError(
                f"--scheduling-policy must be fcfs or priority, got {self.policy!r}."
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SettingsError(
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) must be at least "
                f"--max-num-seqs ({self.max_num_seqs}): every sequence decodes in every step."
            )


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Size of the KV cache, and how it is used."""

    block_size: int = flag(16, "Tokens of a KV block.", CACHE)
    gpu_memory_utilization: float = flag(0.9, "Share of the GPU's memory to use.", CACHE)
    """Share of the device's memory the engine may use in all (CUDA)."""
    kv_cache_memory_bytes: int | None = flag(
        None, "KV memory instead of that share; CPU: 1 GiB.", CACHE
    )
    """KV memory; None = what utilisation leaves on CUDA, 1 GiB on CPU."""
    kv_cache_dtype: KVCacheDtype = flag(
        "auto", "auto = fp8 where the checkpoint has KV scales and the GPU can.", CACHE
    )
    """Type of keys and values; auto is else the model's. `kvasir.models.kv_cache_dtype`."""
    enable_prefix_caching: bool = flag(True, "Reuse KV of shared prefixes.", CACHE)
    num_blocks: int | None = None
    """Blocks of every group, overriding all of the above; for tests and the simulation."""

    def __post_init__(self) -> None:
        _check_choices(self, kv_cache_dtype=KVCacheDtype)
        if self.block_size not in get_args(BlockSize):
            sizes = ", ".join(map(str, get_args(BlockSize)))
            raise SettingsError(f"--block-size must be one of {sizes}, got {self.block_size}.")
        share = self.gpu_memory_utilization
        if not MIN_MEMORY_UTILIZATION <= share <= MAX_MEMORY_UTILIZATION:
            raise SettingsError(
                f"--gpu-memory-utilization must be between {MIN_MEMORY_UTILIZATION} and "
                f"{MAX_MEMORY_UTILIZATION}, got {share}."
            )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of the core; the same for every rank."""

    model: str
    """A local directory by the time the core starts (or the given URI before)."""
    device: Device = flag(
        "auto", "sim computes nothing: a step sleeps as --speed-profile says.", MODEL
    )
    dtype: Dtype = flag("auto", "auto = the model's own on a GPU, float32 on a CPU.", MODEL)
    quantization: QuantizationName = flag(
        "auto", "auto = as the checkpoint is; fp8 also quantises plain weights at load.", MODEL
    )
    max_model_len: int | None = flag(
        None, "Longest prompt plus output, tokens; default: what fits.", MODEL
    )
    """None = the model's own, lowered to what the KV cache holds."""
    revision: str | None = flag(None, "Branch, tag or commit on the hub.", MODEL)
    tokenizer: str | None = flag(
        None, "Another tokenizer, a directory or a Hugging Face id; default: MODEL's.", MODEL
    )
    skip_tokenizer_init: bool = flag(
        False, "No tokenizer: token ids in and out.", MODEL, switch="--skip-tokenizer-init"
    )
    download_dir: str | None = flag(
        None, "Folder to download to; default: Hugging Face's cache.", MODEL
    )
    trust_remote_code: bool = flag(
        False, "Allow Python code that MODEL brings.", MODEL, switch="--trust-remote-code"
    )
    hf_overrides: dict[str, Any] | None = flag(
        None, "Fields to put into the model's config.json.", MODEL, type=str | None, metavar="JSON"
    )
    rope_scaling: dict[str, Any] | None = flag(
        None,
        "Scaling of rotary embeddings, as of config.json; yarn and linear lengthen the context.",
        MODEL,
        type=str | None,
        metavar="JSON",
    )
    rope_theta: float | None = flag(None, "Base of rotary embeddings.", MODEL)
    load_format: LoadFormat = flag(
        "auto", "auto = safetensors; dummy = random weights, for benchmarks.", MODEL
    )
    model_impl: ModelImpl = flag(
        "auto", "Whose model code runs; auto = ours where we have it.", MODEL
    )
    kernels: KernelChoice = flag(
        "auto", "torch = torch's own operations: any GPU, several times slower.", MODEL
    )
    enforce_eager: bool = flag(
        False, "No CUDA graphs: starts sooner, decodes slower.", MODEL, switch="--enforce-eager"
    )
    """Launch decodes a kernel at a time instead of as CUDA graphs (CUDA)."""
    structured_outputs_backend: GrammarLibrary = flag(
        "auto", "Library of grammars; auto = each for what it does best.", HTTP
    )
    speed_profile: str = flag(
        NO_SPEED_PROFILE, "With --device sim: a shipped profile's name or a file.", MODEL
    )
    tensor_parallel_size: int = flag(1, "GPUs (or CPU processes) that share the model.", MODEL)
    enable_expert_parallel: bool = flag(
        False,
        "Divide experts whole over the ranks, instead of each of them.",
        MODEL,
        switch="--enable-expert-parallel",
    )
    seed: int | None = flag(
        None,
        "Of unseeded requests' seeds and of dummy weights; default: another at each start.",
        MODEL,
    )
    """Seeds the draw of the seeds of unseeded requests, and dummy weights; None: drawn at each
    start, so that replicas draw apart, and 0 for dummy weights."""
    overlap: bool = flag(True, "Plan a step while the last one runs.", STEP)
    max_logprobs: int = flag(20, "Most logprobs a request may ask.", HTTP)
    kv_events_endpoint: str = flag("", "ZMQ address for KV events, as tcp://*:5557.", OPS)
    kv_events_replay_endpoint: str = flag("", "ZMQ address to replay them, as tcp://*:5558.", OPS)
    scheduler: SchedulerSettings = group(SchedulerSettings)
    cache: CacheSettings = group(CacheSettings)

    def __post_init__(self) -> None:
        _check_bounds(
            self,
            max_model_len=(MIN_MODEL_LEN, MAX_MODEL_LEN),
            tensor_parallel_size=(1, sys.maxsize),
            seed=(0, MAX_SEED),
            max_logprobs=(0, sys.maxsize),
        )
        # Typer has checked those of a command line, nobody those of `LLM(...)`.
        _check_choices(
            self,
            device=Device,
            dtype=Dtype,
            quantization=QuantizationName,
            load_format=LoadFormat,
            model_impl=ModelImpl,
            kernels=KernelChoice,
            structured_outputs_backend=GrammarLibrary,
        )
        self._check_companions()
        try:
            for name in ("hf_overrides", "rope_scaling"):
                given = getattr(self, name)
                if given is not None:
                    read = read_overrides(given, f"--{name.replace('_', '-')}")
                    object.__setattr__(self, name, read)
        except ConfigError as error:
            raise SettingsError(f"{error}.") from None
        if self.skip_tokenizer_init and self.tokenizer is not None:
            raise SettingsError(
                f"--skip-tokenizer-init leaves out the tokenizer that --tokenizer {self.tokenizer} "
                "names; give one of the two."
            )
        if self.rope_theta is not None and not self.rope_theta > 0:
            raise SettingsError(f"--rope-theta must be above 0, got {self.rope_theta}.")

    def _check_companions(self) -> None:
        """Raise SettingsError for a setting that does nothing without another one."""
        if self.speed_profile != NO_SPEED_PROFILE and self.device != "sim":
            raise SettingsError(
                f"--speed-profile {self.speed_profile} goes with --device sim; leave it out."
            )
        if self.enable_expert_parallel and self.tensor_parallel_size == 1:
            raise SettingsError(
                "--enable-expert-parallel goes with --tensor-parallel-size above 1; leave it out."
            )
        if self.kv_events_replay_endpoint and not self.kv_events_endpoint:
            raise SettingsError(
                "--kv-events-replay-endpoint goes with --kv-events-endpoint; give both."
            )

    @property
    def overrides(self) -> ConfigOverrides:
        """The values to put into the model's config.json."""
        return ConfigOverrides(
            self.hf_overrides or {}, self.rope_scaling, self.rope_theta, self.quantization
        )


def make_settings(model: str, **flags: Any) -> EngineSettings:
    """EngineSettings from flat names as the CLI and `LLM` take them (`max_num_seqs=64`, ...).

    Raises SettingsError for an unknown name, with the nearest known one.
    """
    parts: dict[type[Any], dict[str, Any]] = {owner: {} for owner in _PARTS}
    for name, value in flags.items():
        owner = _OWNERS.get(name)
        if owner is None:
            near = get_close_matches(name, _OWNERS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise SettingsError(f"{name!r} is not an engine setting{hint}")
        parts[owner][name] = value
    return EngineSettings(
        model=model,
        scheduler=SchedulerSettings(**parts[SchedulerSettings]),
        cache=CacheSettings(**parts[CacheSettings]),
        **parts[EngineSettings],
    )


_PARTS = (EngineSettings, SchedulerSettings, CacheSettings)
_OWNERS: dict[str, type[Any]] = {
    each.name: owner
    for owner in _PARTS
    for each in fields(owner)
    if each.name not in ("model", "scheduler", "cache")
}
