"""Plans: what is asked for, what is suggested, and the remedy when it does not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from support.llama_config import LLAMA_8B

from kvasir.models.fit.devices import Device
from kvasir.models.fit.estimate import Workload
from kvasir.models.fit.fit_plan import CPU_KV_BYTES, Option, plan_deployment, plan_model
from kvasir.models.hf_config import parse_shape
from kvasir.models.quantization import Numbers, Quantization, Scales
from kvasir.resource import parse_documents

SHAPE = parse_shape(LLAMA_8B)
CPU = Device("cpu", 64 << 30, is_gpu=False)


def gpu(gib: int) -> Device:
    return Device(f"{gib}g", gib << 30)


def option(device: Device, size: int | None = None, **work: Any) -> Option:
    (made,) = plan_model("m", SHAPE, [device], Workload(**work), tensor_parallel=size).options
    return made


def test_as_many_devices_as_suggested_unless_told() -> None:
    assert option(gpu(12)).suggested == 4
    assert option(gpu(12)).fit.tensor_parallel == 4
    one = option(gpu(12), 1)
    assert (one.suggested, one.fit.tensor_parallel) == (4, 1)
    assert one.problem is not None
    assert "use 4 GPUs with parallelism.tensor 4" in one.problem


def test_a_number_that_does_not_divide_the_heads_has_no_fit() -> None:
    made = option(gpu(80), 3)
    assert made.fit is None
    assert made.problem is not None


@pytest.mark.parametrize(
    ("device", "size", "work", "problem"),
    [
        (gpu(80), 1, {"max_model_len": 200_000}, r"200000 tokens .* own 131072; lower maxModelLen"),
        (gpu(24), 8, {"max_model_len": 131_072, "kv_cache_memory_bytes": 1 << 30}, "65536 tokens"),
        (gpu(24), 8, {"kv_cache_memory_bytes": 1 << 40}, "lower kvCacheMemoryBytes"),
        (Device("tiny", 1 << 30), 8, {}, "a device with more memory, or a quantised model"),
    ],
)
def test_each_problem_names_its_remedy(
    device: Device, size: int, work: dict[str, Any], problem: str
) -> None:
    made = option(device, size, **work)
    assert made.problem is not None
    assert re.search(problem, made.problem), made.problem


def test_a_cache_in_fp8_takes_half_the_bytes() -> None:
    plain, halved = (option(gpu(80), 1, kv_cache_dtype=asked).fit for asked in ("auto", "fp8"))
    assert (plain.kv_dtype, halved.kv_dtype) == ("bfloat16", "fp8")
    assert halved.kv_bytes_per_token * 2 == plain.kv_bytes_per_token
    # One layer's keys and values of the longest context are widened into a buffer.
    buffer = SHAPE.max_position_embeddings * SHAPE.kv_bytes_per_token_and_layer()
    assert plain.kv_bytes - halved.kv_bytes == halved.reserve_bytes - plain.reserve_bytes == buffer
    assert halved.max_concurrency == pytest.approx(2 * plain.max_concurrency, rel=0.05)


def test_weights_in_4_bits_leave_room_for_the_matrix_they_become() -> None:
    packed = Quantization("awq", Numbers.INT4, Scales.GROUP, group=128)
    shape = replace(SHAPE, quantization=packed)
    plain, made = (
        plan_model("m", each, [gpu(80)], Workload()).options[0].fit for each in (SHAPE, shape)
    )
    assert plain is not None
    assert made is not None
    matrix = 2 * SHAPE.intermediate_size * SHAPE.hidden_size * 2
    assert made.reserve_bytes - plain.reserve_bytes == matrix


@pytest.mark.parametrize(
    ("capability", "dtype"), [((9, 0), "fp8"), ((8, 0), "bfloat16"), (None, "bfloat16")]
)
def test_kv_scales_make_the_cache_fp8_where_the_gpu_can(
    capability: tuple[int, int] | None, dtype: str
) -> None:
    scaled = Quantization("fp8", Numbers.FP8, Scales.TENSOR, kv_cache=Numbers.FP8)
    shape = replace(SHAPE, quantization=scaled)
    device = Device("g", 80 << 30, capability=capability)
    (made,) = plan_model("m", shape, [device], Workload()).options
    assert made.fit is not None
    assert made.fit.kv_dtype == dtype


def test_a_gpu_without_float8_says_so() -> None:
    made = option(Device("a100", 80 << 30, capability=(8, 0)), kv_cache_dtype="fp8")
    assert (made.fit, made.suggested) == (None, None)
    assert made.problem is not None
    assert made.problem.endswith("this one has 8.0; take auto")


def test_a_cpu_computes_in_float32_with_a_fixed_cache() -> None:
    made = option(CPU)
    assert made.suggested == 1
    assert made.fit is not None
    assert made.fit.kv_bytes == CPU_KV_BYTES
    assert made.fit.weight_bytes == 4 * SHAPE.num_parameters


def test_one_device_that_fits_is_enough() -> None:
    both = plan_model("m", SHAPE, [gpu(1), gpu(80)], Workload(), tensor_parallel=1)
    assert [each.problem is None for each in both.options] == [False, True]
    assert both.fits
    assert not plan_model("m", SHAPE, [gpu(1)], Workload(), tensor_parallel=1).fits


def test_json_holds_sizes_only_where_there_are_any() -> None:
    plan = plan_model("m", SHAPE, [gpu(80)], Workload(max_model_len=4096), replicas=2).as_json()
    assert (plan["parameters"], plan["replicas"], plan["fits"]) == (8_030_261_248, 2, True)
    (fits,) = plan["options"]
    assert (fits["maxModelLen"], fits["kvBytesPerToken"]) == (4096, 128 << 10)
    (not_divided,) = plan_model("m", SHAPE, [gpu(80)], Workload(), tensor_parallel=3).as_json()[
        "options"
    ]
    assert "kvBytes" not in not_divided
    assert not_divided["problem"]


def test_a_deployments_settings_are_the_plans() -> None:
    (deployment,) = parse_documents(
        "apiVersion: kvasir.dev/v1alpha1\nkind: LLMDeployment\nmetadata: {name: d}\n"
        "spec:\n  model: {uri: 'hf://a/b'}\n  replicas: 3\n  parallelism: {tensor: 2}\n"
        "  resources: {limits: {nvidia.com/gpu: 2}}\n"
        "  engine: {config: {maxModelLen: 1000, dtype: auto, blockSize: 32}}\n",
        "f.yaml",
    )
    plan = plan_deployment(deployment, SHAPE, gpu(80))
    (made,) = plan.options
    assert (plan.name, plan.replicas) == ("d", 3)
    assert made.fit is not None
    assert (made.fit.tensor_parallel, made.fit.max_model_len) == (2, 1000)
