"""The table of engine types: vLLM's and SGLang's names as of vLLM 0.33 and SGLang 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping

from kvasir.resource.engines.traits import (
    EngineTraits,
    EngineType,
    FlagName,
    LoraAPI,
    MetricNames,
)

EVENTS, REPLAY = "{events}", "{replay}"
"""Stand for the addresses of `EngineTraits.events`."""

_SET = "it is set by Kvasir"
_PLAIN = "probes and routers reach engine pods over plain HTTP"
_NO_KEY = "routers bring no key to engines, and NetworkPolicies let only routers in"
_NAMES = "use spec.model.name and spec.model.aliases"
_TENSOR = "use spec.parallelism.tensor"

REMEDIES = {
    "host": _SET,
    "port": _SET,
    "served_model_name": _NAMES,
    "revision": "use spec.model.revision",
    "quantization": "use spec.model.quantization",
    "kv_cache_dtype": "use spec.engine.kvCacheDtype",
    "trust_remote_code": "use spec.model.trustRemoteCode",
    "tensor_parallel_size": _TENSOR,
    "drain_timeout": "use spec.lifecycle.drainSeconds",
    "max_model_len": "use spec.engine.config.maxModelLen",
    "dtype": "use spec.engine.config.dtype",
    "gpu_memory_utilization": "use spec.engine.config.gpuMemoryUtilization",
    "max_num_seqs": "use spec.engine.config.maxNumSeqs",
    "max_num_batched_tokens": "use spec.engine.config.maxNumBatchedTokens",
    "block_size": "use spec.engine.config.blockSize",
    "enable_prefix_caching": "use spec.engine.config.enablePrefixCaching",
    "device": "use spec.engine.config.device",
    "kv_cache_memory_bytes": "use spec.engine.config.kvCacheMemoryBytes",
    "seed": "use spec.engine.config.seed",
    "load_format": "use spec.engine.config.loadFormat",
}
"""Settings that types have flags for, each with where it is set."""

_COMMON: Mapping[str, FlagName] = {
    "host": "--host",
    "port": "--port",
    "served_model_name": "--served-model-name",
    "revision": "--revision",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "trust_remote_code": ("--trust-remote-code", ""),
    "tensor_parallel_size": "--tensor-parallel-size",
    "dtype": "--dtype",
    "load_format": "--load-format",
}
_VLLM: Mapping[str, FlagName] = {
    **_COMMON,
    "max_model_len": "--max-model-len",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "block_size": "--block-size",
    "enable_prefix_caching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "seed": "--seed",
}


def _vllm_metrics(prefix: str) -> MetricNames:
    return MetricNames(
        running=(f"{prefix}num_requests_running",),
        waiting=(f"{prefix}num_requests_waiting",),
        # The second is vLLM's name until 0.10
        kv_usage=(f"{prefix}kv_cache_usage_perc", f"{prefix}gpu_cache_usage_perc"),
        prompt_tokens=f"{prefix}request_prompt_tokens",
        ttft=f"{prefix}time_to_first_token_seconds",
        cache_info=f"{prefix}cache_config_info",
    )


KVASIR = EngineTraits(
    program=("kvasir", "serve"),
    is_entrypoint=True,
    flags={**_VLLM, "device": "--device", "drain_timeout": "--drain-timeout"},
    events=("--kv-events-endpoint", EVENTS, "--kv-events-replay-endpoint", REPLAY),
    reserved={
        "--grpc-port": _SET,
        "--fleet-secret-file": _SET,
        "--ssl-certfile": _PLAIN,
        "--ssl-keyfile": _PLAIN,
    },
    metrics=_vllm_metrics("kvasir_"),
    ready_path="/ready",
    live_path="/live",
    refuses_other_names=True,
    drain="flag",
    contract=True,
)

VLLM = EngineTraits(
    program=("vllm", "serve"),
    flags={**_VLLM, "drain_timeout": "--shutdown-timeout"},
    events=(
        "--kv-events-config",
        f'{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"{EVENTS}",'
        f'"replay_endpoint":"{REPLAY}"}}',
    ),
    reserved={
        "--model": "use spec.model.uri",
        "-tp": _TENSOR,
        "--api-key": _NO_KEY,
        "--ssl-certfile": _PLAIN,
        "--ssl-keyfile": _PLAIN,
    },
    metrics=_vllm_metrics("vllm:"),
    lora=LoraAPI(
        enabling=("--enable-lora",),
        sizes=("--max-loras", "4", "--max-cpu-loras", "32"),
        variables={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
    ),
    live_path="/health",
    refuses_other_names=True,
    drain="flag",
)

SGLANG = EngineTraits(
    program=("python3", "-m", "sglang.launch_server"),
    model="--model-path",
    flags={
        **_COMMON,
        "max_model_len": "--context-length",
        # A share for weights and KV cache, without activations and graphs
        "gpu_memory_utilization": "--mem-fraction-static",
        "max_num_seqs": "--max-running-requests",
        "max_num_batched_tokens": "--chunked-prefill-size",
        "block_size": "--page-size",
        "enable_prefix_caching": ("", "--disable-radix-cache"),
        "device": "--device",
        "seed": "--random-seed",
    },
    values={("kv_cache_dtype", "fp8"): "fp8_e4m3"},
    several_names=False,
    always=("--enable-metrics",),
    events=(
        "--kv-events-config",
        f'{{"publisher":"zmq","endpoint":"{EVENTS}","replay_endpoint":"{REPLAY}"}}',
    ),
    reserved={
        "--model": "use spec.model.uri",
        "--model-path": "use spec.model.uri",
        "--tp": _TENSOR,
        "--tp-size": _TENSOR,
        "--api-key": _NO_KEY,
        "--ssl-certfile": _PLAIN,
        "--ssl-keyfile": _PLAIN,
    },
    metrics=MetricNames(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_usage=("sglang:token_usage",),
        prompt_tokens="sglang:prompt_tokens_histogram",
        ttft="sglang:time_to_first_token_seconds",
        capacity="sglang:max_total_num_tokens",
    ),
    lora=LoraAPI(
        load_path="/load_lora_adapter",
        unload_path="/unload_lora_adapter",
        enabling=("--enable-lora",),
        # It tells neither from adapters that come later
        sizes=("--max-lora-rank", "64", "--lora-target-modules", "all"),
    ),
    live_path="/health",
    drain="sigterm",
)

CUSTOM = EngineTraits()
"""An engine of which only OpenAI's API is known; its spec says the rest."""

ENGINE_TYPES: Mapping[EngineType, EngineTraits] = {
    "kvasir": KVASIR,
    "vllm": VLLM,
    "sglang": SGLANG,
    "custom": CUSTOM,
}
"""Traits by type."""


def reserved_flags(traits: EngineTraits) -> dict[str, str]:
    """Return the flags that `spec.engine.args` may not carry, each with its remedy."""
    own = {
        flag: REMEDIES[setting]
        for setting, flags in traits.flags.items()
        for flag in ((flags,) if isinstance(flags, str) else flags)
        if flag
    }
    events = {word: _SET for word in traits.events if word.startswith("--")}
    return {**own, **dict.fromkeys(traits.always, _SET), **events, **traits.reserved}
