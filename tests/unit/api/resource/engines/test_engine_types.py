"""The table of engine types, row by row."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from kvasir.resource.engine_spec import Engine, EngineConfig
from kvasir.resource.engines.engine_args import event_flags
from kvasir.resource.engines.engine_types import ENGINE_TYPES, REMEDIES, reserved_flags
from kvasir.resource.engines.traits import EngineType, MetricNames

FLAGS = {
    "max_model_len": ("--max-model-len", "--max-model-len", "--context-length"),
    "served_model_name": ("--served-model-name",) * 3,
    "tensor_parallel_size": ("--tensor-parallel-size",) * 3,
    "quantization": ("--quantization",) * 3,
    "dtype": ("--dtype",) * 3,
    "kv_cache_dtype": ("--kv-cache-dtype",) * 3,
    "revision": ("--revision",) * 3,
    "trust_remote_code": (("--trust-remote-code", ""),) * 3,
    "host": ("--host",) * 3,
    "port": ("--port",) * 3,
    "gpu_memory_utilization": (
        "--gpu-memory-utilization",
        "--gpu-memory-utilization",
        "--mem-fraction-static",
    ),
    "max_num_seqs": ("--max-num-seqs", "--max-num-seqs", "--max-running-requests"),
    "max_num_batched_tokens": (
        "--max-num-batched-tokens",
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
    ),
    "block_size": ("--block-size", "--block-size", "--page-size"),
    "enable_prefix_caching": (
        ("--enable-prefix-caching", "--no-enable-prefix-caching"),
        ("--enable-prefix-caching", "--no-enable-prefix-caching"),
        ("", "--disable-radix-cache"),
    ),
    "device": ("--device", None, "--device"),
    "kv_cache_memory_bytes": ("--kv-cache-memory-bytes", "--kv-cache-memory-bytes", None),
    "seed": ("--seed", "--seed", "--random-seed"),
    "load_format": ("--load-format",) * 3,
    "drain_timeout": ("--drain-timeout", "--shutdown-timeout", None),
}
"""Flags of kvasir, vllm and sglang."""


@pytest.mark.parametrize("setting", FLAGS)
def test_flags(setting: str) -> None:
    found = tuple(ENGINE_TYPES[kind].flags.get(setting) for kind in ("kvasir", "vllm", "sglang"))
    assert found == FLAGS[setting]


def test_the_table_is_whole() -> None:
    assert set(ENGINE_TYPES) == set(get_args(EngineType))
    assert set(FLAGS) == set(REMEDIES)
    assert set(EngineConfig.model_fields) < set(REMEDIES)
    for traits in ENGINE_TYPES.values():
        assert set(traits.flags) <= set(REMEDIES)
    assert not ENGINE_TYPES["custom"].flags


@pytest.mark.parametrize(
    ("kind", "program", "ready", "live", "drain", "contract", "strict"),
    [
        ("kvasir", ("kvasir", "serve"), "/ready", "/live", "flag", True, True),
        ("vllm", ("vllm", "serve"), "/health", "/health", "flag", False, True),
        (
            "sglang",
            ("python3", "-m", "sglang.launch_server"),
            "/health",
            "/health",
            "sigterm",
            False,
            False,
        ),
        ("custom", (), "/health", "", "wait", False, False),
    ],
)
def test_how_it_is_started_asked_and_stopped(
    kind: EngineType,
    program: tuple[str, ...],
    ready: str,
    live: str,
    drain: str,
    contract: bool,
    strict: bool,
) -> None:
    it = ENGINE_TYPES[kind]
    assert (it.program, it.ready_path, it.live_path, it.drain) == (program, ready, live, drain)
    assert (it.contract, it.refuses_other_names) == (contract, strict)


@pytest.mark.parametrize(
    ("kind", "running", "waiting", "kv_usage", "ttft"),
    [
        (
            "kvasir",
            "kvasir_num_requests_running",
            "kvasir_num_requests_waiting",
            "kvasir_kv_cache_usage_perc",
            "kvasir_time_to_first_token_seconds",
        ),
        (
            "vllm",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:time_to_first_token_seconds",
        ),
        (
            "sglang",
            "sglang:num_running_reqs",
            "sglang:num_queue_reqs",
            "sglang:token_usage",
            "sglang:time_to_first_token_seconds",
        ),
    ],
)
def test_metrics(kind: EngineType, running: str, waiting: str, kv_usage: str, ttft: str) -> None:
    names = ENGINE_TYPES[kind].metrics
    assert (names.running[0], names.waiting[0]) == (running, waiting)
    assert (names.kv_usage[0], names.ttft) == (kv_usage, ttft)


def test_nothing_is_known_of_the_metrics_of_a_custom_engine() -> None:
    assert ENGINE_TYPES["custom"].metrics == MetricNames()


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (
            "vllm",
            [
                "--kv-events-config",
                '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:1",'
                '"replay_endpoint":"tcp://*:2"}',
            ],
        ),
        (
            "sglang",
            [
                "--kv-events-config",
                '{"publisher":"zmq","endpoint":"tcp://*:1","replay_endpoint":"tcp://*:2"}',
            ],
        ),
        ("custom", []),
    ],
)
def test_flags_of_kv_events(kind: EngineType, flags: list[str]) -> None:
    assert event_flags(ENGINE_TYPES[kind], "tcp://*:1", "tcp://*:2") == flags


RESERVED = [(kind, flag) for kind, it in ENGINE_TYPES.items() for flag in reserved_flags(it)]


@pytest.mark.parametrize(("kind", "flag"), RESERVED)
def test_no_argument_contradicts_a_field(kind: EngineType, flag: str) -> None:
    content: dict[str, Any] = {"type": kind, "image": "x:1", "args": [f"{flag}=1"]}
    with pytest.raises(ValueError, match=f"{flag} cannot be an extra argument: "):
        Engine.model_validate(content)


def test_every_flag_of_the_table_is_reserved() -> None:
    for traits in ENGINE_TYPES.values():
        flags = {word for words in traits.flags.values() for word in (words, *words)}
        named = {flag for flag in flags if isinstance(flag, str) and flag.startswith("--")}
        assert named <= set(reserved_flags(traits))


def test_a_custom_engine_may_have_any_argument() -> None:
    content = {"type": "custom", "image": "x:1", "args": ["--port", "1", "--model", "m"]}
    assert Engine.model_validate(content).args == ["--port", "1", "--model", "m"]
