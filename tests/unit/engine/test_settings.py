from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvasir.models.config_overrides import ConfigOverrides
from kvasir_engine.settings import (
    CacheSettings,
    EngineSettings,
    SchedulerSettings,
    SettingsError,
    make_settings,
)


@pytest.mark.parametrize(
    ("make", "fields", "sentence"),
    [
        (SchedulerSettings, {"max_num_seqs": 0}, "--max-num-seqs must be at least 1, got 0."),
        (
            SchedulerSettings,
            {"max_num_seqs": 300, "max_num_batched_tokens": 256},
            "--max-num-batched-tokens (256) must be at least --max-num-seqs (300)",
        ),
        (
            SchedulerSettings,
            {"long_prefill_token_threshold": -1},
            "--long-prefill-token-threshold must be at least 0, got -1.",
        ),
        (
            SchedulerSettings,
            {"max_queued_requests": 0},
            "--max-queued-requests must be at least 1, got 0.",
        ),
        (
            SchedulerSettings,
            {"max_num_batched_tokens": 2_000_000},
            "--max-num-batched-tokens must be at most 1048576, got 2000000.",
        ),
        (
            SchedulerSettings,
            {"policy": "lifo"},
            "--scheduling-policy must be fcfs or priority, got 'lifo'.",
        ),
        (CacheSettings, {"block_size": 12}, "--block-size must be one of 8, 16, 32, 64, 128"),
        (CacheSettings, {"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization must be"),
        (CacheSettings, {"gpu_memory_utilization": 1.5}, "got 1.5"),
    ],
)
def test_a_setting_that_cannot_work_names_its_flag(
    make: Any, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError) as error:
        make(**fields)
    assert sentence in str(error.value)


@pytest.mark.parametrize("given", ['{"a": {"b": 1}}', {"a": {"b": 1}}])
def test_overrides_are_json_or_an_object(given: Any) -> None:
    made = EngineSettings(
        "m", hf_overrides=given, rope_scaling=given, rope_theta=2.0, quantization="fp8"
    )
    again = msgspec.json.decode(msgspec.json.encode(made), type=EngineSettings)
    assert made == again
    assert made.overrides == ConfigOverrides({"a": {"b": 1}}, {"a": {"b": 1}}, 2.0, "fp8")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"hf_overrides": "{"}, "--hf-overrides takes a JSON object: "),
        ({"rope_scaling": "[]"}, r"--rope-scaling takes a JSON object, not \[\]\."),
        ({"rope_theta": 0.0}, r"--rope-theta must be above 0, got 0\.0\."),
    ],
)
def test_overrides_that_cannot_work_name_their_flag(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        EngineSettings("m", **fields)


def test_tensor_parallel_size_is_positive() -> None:
    with pytest.raises(SettingsError, match=r"--tensor-parallel-size must be at least 1, got 0\."):
        EngineSettings(model="m", tensor_parallel_size=0)


def test_flat_names_find_their_part() -> None:
    settings = make_settings("m", max_num_seqs=3, block_size=8, seed=5)
    assert settings == EngineSettings(
        model="m",
        seed=5,
        scheduler=SchedulerSettings(max_num_seqs=3),
        cache=CacheSettings(block_size=8),
    )


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"did you mean 'max_num_seqs'\?"):
        make_settings("m", max_num_seq=3)
    with pytest.raises(SettingsError, match="'zzz' is not an engine setting"):
        make_settings("m", zzz=3)


def test_a_tokenizer_that_is_left_out_has_no_name() -> None:
    with pytest.raises(SettingsError, match=r"--skip-tokenizer-init .* --tokenizer mine"):
        make_settings("m", skip_tokenizer_init=True, tokenizer="mine")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"device": "tpu"}, "--device must be one of auto, cpu, cuda, sim, got 'tpu'."),
        ({"dtype": "fp16"}, "--dtype must be one of auto, float32, bfloat16, float16, got 'fp16'."),
        ({"load_format": "pt"}, "--load-format must be one of auto, safetensors, dummy, got 'pt'."),
        ({"model_impl": "vllm"}, "--model-impl must be one of auto, native, transformers, got"),
        (
            {"structured_outputs_backend": "outlines"},
            "--structured-outputs-backend must be one of auto, xgrammar, llguidance, got "
            "'outlines'.",
        ),
        ({"kernels": "fast"}, "--kernels must be one of auto, torch, got 'fast'."),
        ({"quantization": "int8"}, "--quantization must be one of auto, fp8, awq, gptq, "),
        (
            {"kv_cache_dtype": "int8"},
            "--kv-cache-dtype must be one of auto, fp8, fp8_e4m3, got 'int8'.",
        ),
        ({"max_logprobs": -1}, "--max-logprobs must be at least 0, got -1."),
    ],
)
def test_a_value_that_means_nothing_names_its_flag(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as error:
        make_settings("m", **fields)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("fields", "companion"),
    [
        ({"speed_profile": "mine.json"}, {"device": "sim"}),
        (
            {"kv_events_replay_endpoint": "tcp://*:5558"},
            {"kv_events_endpoint": "tcp://*:5557"},
        ),
    ],
)
def test_a_setting_that_does_nothing_alone_asks_for_the_other(
    fields: dict[str, Any], companion: dict[str, Any]
) -> None:
    (name,) = companion
    with pytest.raises(SettingsError, match=f"goes with --{name.replace('_', '-')}"):
        make_settings("m", **fields)
    make_settings("m", **fields, **companion)


def test_experts_are_divided_over_several_ranks_alone() -> None:
    assert make_settings("m", tensor_parallel_size=2, enable_expert_parallel=True)
    with pytest.raises(SettingsError, match="goes with --tensor-parallel-size above 1; leave it"):
        make_settings("m", enable_expert_parallel=True)
