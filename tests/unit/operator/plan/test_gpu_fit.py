"""Whether a replica fits, and on how many GPUs, before any engine starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir_operator.objects import format_time
from kvasir_operator.plan.gpu_fit import FITTED
from kvasir_operator.plan.observed import Hardware

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
GROUPED = {"quant_method": "awq", "bits": 4, "group_size": 128}
AUTO = {"model": {"uri": "hf://org/model"}, "parallelism": {"tensor": "auto"}}


@pytest.fixture
def known(world: Any, make: Any) -> Any:
    """known(spec, **config): a world whose model is downloaded and whose config.json is known."""

    def build(spec: dict[str, Any], **config: Any) -> Any:
        claim = {"metadata": {"name": "m-models", "namespace": "ns", "uid": "c"}, "spec": {}}
        one = world(spec).see(claim=claim)
        job = make.manifest(one.plan(), "Job")
        model = json.dumps({"config": {**SMALL, **config}, "weightsBytes": 16_060_522_496})
        job["metadata"]["annotations"]["kvasir.dev/model-config"] = model
        done = {"type": "Complete", "status": "True", "lastTransitionTime": format_time(make.NOW)}
        job["status"] = {"conditions": [done]}
        return one.see(jobs=(job,))

    return build


def gpus(make: Any, made: Any) -> str:
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    return str(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])


@pytest.mark.parametrize(("gigabytes", "count"), [(80, "1"), (24, "1"), (12, "2"), (8, "4")])
def test_auto_takes_as_few_gpus_as_do(known: Any, make: Any, gigabytes: int, count: str) -> None:
    made = known(AUTO).see(hardware=Hardware(gigabytes << 30, 8)).plan()
    assert make.condition(made, "Fits")[:2] == ("True", "Fits")
    assert gpus(make, made) == count
    assert made.status["fit"]["tensor"] == int(count)
    assert made.status["fit"]["weightsGiB"] == pytest.approx(14.96, abs=0.5)
    args = make.manifest(made, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ("--tensor-parallel-size" in args) == (count != "1")


@pytest.mark.parametrize(
    ("config", "spec", "count"),
    [
        ({}, {}, "4"),
        ({}, {"model": {"quantization": "fp8"}}, "2"),
        ({"quantization_config": {"quant_method": "fp8"}}, {}, "2"),
        ({"quantization_config": GROUPED}, {}, "2"),
        ({"quantization_config": GROUPED, "max_position_embeddings": 49_152}, {}, "4"),
        (
            {"quantization_config": GROUPED, "max_position_embeddings": 49_152},
            {"engine": {"kvCacheDtype": "fp8"}},
            "2",
        ),
    ],
)
def test_auto_counts_what_is_quantised(
    known: Any, make: Any, config: dict[str, Any], spec: dict[str, Any], count: str
) -> None:
    wanted = make.merged(AUTO, spec)
    made = known(wanted, **config).see(hardware=Hardware(8 << 30, 8, (8, 9))).plan()
    assert gpus(make, made) == count, make.condition(made, "Fits")
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    (shm,) = (each["emptyDir"] for each in pod["volumes"] if each["name"] == "shm")
    assert shm == {"medium": "Memory", "sizeLimit": f"{int(count) << 10}Mi"}


def test_other_nodes_are_no_reason_to_restart_engines(known: Any, make: Any) -> None:
    one = known(AUTO).see(hardware=Hardware(12 << 30, 8))
    one.step()
    first = make.manifest(one.plan(), "Deployment")
    assert make.manifest(one.see(hardware=Hardware(80 << 30, 8)).plan(), "Deployment") == first
    changed = one.edit({"engine": {"config": {"maxModelLen": 1024}}}).plan()
    assert gpus(make, changed) == "1"


def test_a_kv_cache_in_fp8_needs_fewer_gpus(known: Any, make: Any) -> None:
    tight = {"engine": {"config": {"maxModelLen": 8192, "kvCacheMemoryBytes": "1Gi"}}}
    spec = make.merged(AUTO, tight)
    hardware = Hardware(24 << 30, 8, (8, 9))
    plain = known(spec).see(hardware=hardware).plan().status["fit"]
    asked = make.merged(spec, {"engine": {"kvCacheDtype": "fp8"}})
    one = known(asked).see(hardware=hardware)
    made = one.plan()
    halved = made.status["fit"]
    assert (plain["kvCacheDtype"], halved["kvCacheDtype"]) == ("bfloat16", "fp8")
    assert halved["kvTokens"] == pytest.approx(2 * plain["kvTokens"], rel=0.01)
    assert "tokens in fp8" in make.condition(made, "Fits")[2]
    args = make.manifest(made, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--kv-cache-dtype") + 1] == "fp8"
    refused = one.see(hardware=Hardware(24 << 30, 8, (8, 0))).plan()
    assert make.condition(refused, "Fits")[:2] == ("False", "DoesNotFit")


@pytest.mark.parametrize(
    "format_", [{"model": {"quantization": "fp8"}}, {"engine": {"kvCacheDtype": "fp8"}}]
)
def test_another_format_chooses_anew(known: Any, make: Any, format_: dict[str, Any]) -> None:
    one = known(make.merged(AUTO, {"engine": {"config": {"maxModelLen": 8192}}}))
    one = one.see(hardware=Hardware(12 << 30, 8, (9, 0)))
    one.step()
    before = make.manifest(one.plan(), "Deployment")["metadata"]["annotations"][FITTED]
    after = make.manifest(one.edit(format_).plan(), "Deployment")["metadata"]["annotations"]
    assert after[FITTED] != before


def test_what_does_not_fit_is_not_started(known: Any, make: Any) -> None:
    spec = {"model": {"uri": "hf://org/model"}, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    made = known(spec).see(hardware=Hardware(12 << 30, 8)).plan()
    status, reason, message = make.condition(made, "Fits")
    assert (status, reason) == ("False", "DoesNotFit")
    assert "use 2 GPUs with parallelism.tensor 2" in message
    assert "Deployment" not in [each["kind"] for each in made.manifests]
    assert made.status["phase"] == "Failed"
    assert make.condition(made, "Ready")[1] == "DoesNotFit"


def test_auto_keeps_below_the_limit(known: Any, make: Any) -> None:
    spec = {**AUTO, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    made = known(spec).see(hardware=Hardware(12 << 30, 8)).plan()
    assert make.condition(made, "Fits")[:2] == ("False", "DoesNotFit")
    assert "more than resources.limits nvidia.com/gpu 1" in make.condition(made, "Fits")[2]


def test_unknown_hardware_keeps_only_auto_waiting(known: Any, make: Any) -> None:
    made = known(AUTO).plan()
    assert make.condition(made, "Fits")[:2] == ("Unknown", "Unknown")
    assert "Deployment" not in [each["kind"] for each in made.manifests]
    spec = {"model": {"uri": "hf://org/model"}, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    made = known(spec).plan()
    assert make.condition(made, "Fits")[0] == "Unknown"
    assert gpus(make, made) == "1"


def test_kernels_outlive_pods_on_the_cache_volume(known: Any, make: Any) -> None:
    spec = {"model": {"uri": "hf://org/model"}, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = make.manifest(known(spec).plan(), "Deployment")["spec"]["template"]["spec"]
    (cache,) = (m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == "/cache")
    assert cache["name"] == "models"
    # The LLMDeployment's own, also on a claim that others have too: kernels are code
    assert cache["subPath"].startswith(".kernels/m/")
    other = make.merged(spec, {"engine": {"image": "other:1"}})
    pod = make.manifest(known(other).plan(), "Deployment")["spec"]["template"]["spec"]
    (another,) = (m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == "/cache")
    assert another["subPath"] != cache["subPath"]


def test_the_status_tells_what_is_known_of_the_fit(known: Any, make: Any) -> None:
    made = known(AUTO).see(hardware=Hardware(80 << 30, 8)).plan()
    assert made.status["fit"]["kvTokens"] > 8192
    assert set(made.status["fit"]) == {"tensor", "weightsGiB", "kvTokens", "kvCacheDtype"}
    spec = {"model": {"uri": "hf://org/model"}, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    unknown = known(spec).plan().status["fit"]
    assert unknown == {"tensor": 1}


def test_without_a_report_only_auto_waits(known: Any, make: Any) -> None:
    for tensor, blocked in (("auto", True), (2, False)):
        spec = {**AUTO, "parallelism": {"tensor": tensor}}
        if tensor != "auto":
            spec["resources"] = {"limits": {"nvidia.com/gpu": 2}}
        one = known(spec)
        (job,) = one.observed.jobs
        del job["metadata"]["annotations"]["kvasir.dev/model-config"]
        made = one.plan()
        status, reason, message = make.condition(made, "Fits")
        assert (status, reason) == ("Unknown", "Unknown")
        assert ("is chosen when" in message) is blocked
        assert ("Deployment" in [each["kind"] for each in made.manifests]) is not blocked
        assert "fit" not in made.status


def test_the_limit_itself_may_be_reached(known: Any, make: Any) -> None:
    spec = {**AUTO, "resources": {"limits": {"nvidia.com/gpu": 2}}}
    made = known(spec).see(hardware=Hardware(12 << 30, 8)).plan()
    assert make.condition(made, "Fits")[:2] == ("True", "Fits")
    assert gpus(make, made) == "2"


@pytest.mark.parametrize(("gigabytes", "verdict"), [(80, "True"), (8, "Unknown")])
def test_of_another_engine_it_is_an_estimate_that_stops_nothing(
    known: Any, make: Any, gigabytes: int, verdict: str
) -> None:
    spec = {
        "model": {"uri": "hf://org/model"},
        "engine": {"type": "vllm", "image": "v:1"},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    made = known(spec).see(hardware=Hardware(gigabytes << 30, 8)).plan()
    status, _, message = make.condition(made, "Fits")
    assert status == verdict
    assert message.startswith("An estimate by the memory that Kvasir's engine needs, not vllm's: ")
    assert gpus(make, made) == "1"


def test_the_gpus_of_another_engine_are_chosen_by_the_estimate(known: Any, make: Any) -> None:
    wanted = make.merged(AUTO, {"engine": {"type": "sglang", "image": "s:1"}})
    made = known(wanted).see(hardware=Hardware(8 << 30, 8)).plan()
    assert gpus(make, made) == "4"
    args = make.manifest(made, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--tensor-parallel-size") + 1] == "4"


def test_of_a_custom_engine_nothing_is_estimated(known: Any, make: Any) -> None:
    spec = {"model": {"uri": "hf://org/model"}, "engine": {"type": "custom", "image": "c:1"}}
    made = known(spec).see(hardware=Hardware(1 << 30, 8)).plan()
    assert make.condition(made, "Fits")[:2] == ("True", "NotNeeded")
