from __future__ import annotations

from typing import Any

from kvasir.resource import LLMDeployment, engine_command
from kvasir.resource.engine_spec import RESERVED_FLAGS
from kvasir.resource.llmdeployment import EngineConfig


def deployment(**spec: Any) -> LLMDeployment:
    return LLMDeployment.model_validate(
        {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "d"},
            "spec": {"model": {"uri": "hf://a/b"}, **spec},
        }
    )


def test_the_least_command() -> None:
    assert engine_command(deployment(), host="127.0.0.1", port=9) == [
        "kvasir",
        "serve",
        "hf://a/b",
        "--host",
        "127.0.0.1",
        "--port",
        "9",
        "--served-model-name",
        "d",
        "--drain-timeout",
        "45",
    ]


def test_every_field_has_its_flag() -> None:
    command = engine_command(
        deployment(
            model={
                "uri": "hf://a/b",
                "revision": "r1",
                "name": "m",
                "aliases": ["n", "o"],
                "quantization": "fp8",
                "trustRemoteCode": True,
            },
            engine={
                "args": ["--no-overlap", "--tokenizer", "x y"],
                "kvCacheDtype": "fp8",
                "config": {
                    "maxModelLen": 10,
                    "dtype": "bfloat16",
                    "gpuMemoryUtilization": 0.5,
                    "maxNumSeqs": 2,
                    "maxNumBatchedTokens": 3,
                    "blockSize": 32,
                    "enablePrefixCaching": False,
                    "device": "cuda",
                    "kvCacheMemoryBytes": "1Gi",
                    "seed": 4,
                    "loadFormat": "dummy",
                },
            },
            resources={"limits": {"nvidia.com/gpu": "2"}},
            parallelism={"tensor": 2},
            lifecycle={"drainSeconds": 5},
        ),
        host="::",
        port=1,
        program=("python", "-m", "kvasir"),
    )
    assert command == [
        *("python", "-m", "kvasir", "serve", "hf://a/b", "--host", "::", "--port", "1"),
        *("--served-model-name", "m", "n", "o", "--revision", "r1", "--quantization", "fp8"),
        *(
            "--kv-cache-dtype",
            "fp8",
            "--trust-remote-code",
            "--tensor-parallel-size",
            "2",
            "--drain-timeout",
            "5",
            "--max-model-len",
            "10",
        ),
        *("--dtype", "bfloat16", "--gpu-memory-utilization", "0.5", "--max-num-seqs", "2"),
        *("--max-num-batched-tokens", "3", "--block-size", "32", "--no-enable-prefix-caching"),
        *("--device", "cuda", "--kv-cache-memory-bytes", str(2**30), "--seed", "4"),
        *("--load-format", "dummy", "--no-overlap", "--tokenizer", "x y"),
    ]


def test_a_directory_takes_the_place_of_uri_and_revision() -> None:
    command = engine_command(
        deployment(model={"uri": "hf://a/b", "revision": "r1"}), host="h", port=1, model="/models/x"
    )
    assert command[2] == "/models/x"
    assert "--revision" not in command


def test_the_number_of_gpus_may_be_left_open() -> None:
    auto = deployment(parallelism={"tensor": "auto"}, resources={"limits": {"nvidia.com/gpu": 2}})
    assert engine_command(auto, host="h", port=1, tensor=4)[-3] == "4"
    assert engine_command(auto, host="h", port=1)[-3] == "2"


def test_prefix_caching_can_be_asked_for() -> None:
    command = engine_command(
        deployment(engine={"config": {"enablePrefixCaching": True}}), host="h", port=1
    )
    assert command[-1] == "--enable-prefix-caching"


def test_no_extra_argument_can_contradict_a_field() -> None:
    for name in EngineConfig.model_fields:
        assert f"--{name.replace('_', '-')}" in RESERVED_FLAGS
