from __future__ import annotations

from typing import Any

from kvasir.resource import LLMDeployment, engine_command
from kvasir.resource.engines.engine_args import engine_variables, expand

WHOLE: dict[str, Any] = {
    "model": {
        "uri": "hf://a/b",
        "revision": "r1",
        "name": "m",
        "aliases": ["n", "o"],
        "quantization": "fp8",
        "trustRemoteCode": True,
    },
    "resources": {"limits": {"nvidia.com/gpu": "2"}},
    "parallelism": {"tensor": 2},
    "lifecycle": {"drainSeconds": 5},
}
CONFIG = {
    "maxModelLen": 10,
    "dtype": "bfloat16",
    "gpuMemoryUtilization": 0.5,
    "maxNumSeqs": 2,
    "maxNumBatchedTokens": 3,
    "blockSize": 32,
    "enablePrefixCaching": False,
    "device": "cuda",
    "seed": 4,
    "loadFormat": "dummy",
}


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
    engine = {
        "args": ["--no-overlap", "--tokenizer", "x y"],
        "kvCacheDtype": "fp8",
        "config": {**CONFIG, "kvCacheMemoryBytes": "1Gi"},
    }
    command = engine_command(
        deployment(**WHOLE, engine=engine),
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


def test_the_command_of_vllm() -> None:
    engine = {
        "type": "vllm",
        "image": "v:1",
        "args": ["--enforce-eager"],
        "kvCacheDtype": "fp8",
        "config": {**CONFIG, "kvCacheMemoryBytes": "1Gi"},
    }
    command = engine_command(deployment(**WHOLE, engine=engine), host="::", port=1)
    assert command == [
        *("vllm", "serve", "a/b", "--host", "::", "--port", "1"),
        *("--served-model-name", "m", "n", "o", "--revision", "r1", "--quantization", "fp8"),
        *("--kv-cache-dtype", "fp8", "--trust-remote-code", "--tensor-parallel-size", "2"),
        *("--shutdown-timeout", "5", "--max-model-len", "10", "--dtype", "bfloat16"),
        *("--gpu-memory-utilization", "0.5", "--max-num-seqs", "2"),
        *("--max-num-batched-tokens", "3", "--block-size", "32", "--no-enable-prefix-caching"),
        *("--kv-cache-memory-bytes", str(2**30), "--seed", "4", "--load-format", "dummy"),
        "--enforce-eager",
    ]


def test_the_command_of_sglang() -> None:
    engine = {"type": "sglang", "image": "s:1", "kvCacheDtype": "fp8", "config": CONFIG}
    command = engine_command(deployment(**WHOLE, engine=engine), host="h", port=1, model="/m")
    assert command == [
        *("python3", "-m", "sglang.launch_server", "--model-path", "/m", "--host", "h"),
        *("--port", "1", "--served-model-name", "m", "--quantization", "fp8"),
        *("--kv-cache-dtype", "fp8_e4m3", "--trust-remote-code", "--tensor-parallel-size", "2"),
        *("--context-length", "10", "--dtype", "bfloat16", "--mem-fraction-static", "0.5"),
        *("--max-running-requests", "2", "--chunked-prefill-size", "3", "--page-size", "32"),
        *("--disable-radix-cache", "--device", "cuda", "--random-seed", "4"),
        *("--load-format", "dummy", "--enable-metrics"),
    ]


def test_the_command_of_a_custom_engine_is_the_users() -> None:
    engine = {"type": "custom", "command": ["serve", "$(KVASIR_MODEL)"], "args": ["--port=1"]}
    own = deployment(engine=engine)
    command = engine_command(own, host="h", port=8, model="/m")
    assert command == ["serve", "$(KVASIR_MODEL)", "--port=1"]
    told = engine_variables(own, host="h", port=8, model="/m", tensor=2)
    assert expand(command, told) == ["serve", "/m", "--port=1"]
    assert told == {
        "KVASIR_MODEL": "/m",
        "KVASIR_SERVED_NAME": "d",
        "KVASIR_HOST": "h",
        "KVASIR_PORT": "8",
        "KVASIR_TENSOR_PARALLEL_SIZE": "2",
    }


def test_references_are_expanded_as_a_kubelet_does() -> None:
    words = ["$(A)$(A)", "$$(A)", "$(B)", "$A", "$(A", "$$$(A)"]
    assert expand(words, {"A": "x"}) == ["xx", "$(A)", "$(B)", "$A", "$(A", "$x"]
