"""Command lines of vLLM."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from kvasir.cli.kubectl.convert.conversion import convert_words
from kvasir.cli.kubectl.convert.draft import ConvertError
from kvasir.cli.kubectl.convert.from_command_line import name_of_model


def spec(line: str, engine: Any = "vllm") -> dict[str, Any]:
    draft = convert_words(shlex.split(line), engine)
    assert draft.lost == []
    return dict(draft.document["spec"])


@pytest.mark.parametrize(
    "start",
    [
        "vllm serve Qwen/Qwen3-8B",
        "serve Qwen/Qwen3-8B",
        "/usr/bin/vllm serve Qwen/Qwen3-8B",
        "python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B",
    ],
)
def test_programs(start: str) -> None:
    made = spec(f"{start} --port 8000")
    assert made["model"] == {"uri": "hf://Qwen/Qwen3-8B"}
    assert made["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert "args" not in made["engine"]


def test_flags_become_fields() -> None:
    made = spec(
        "vllm serve Qwen/Qwen3-8B --max_model_len=32K -tp 2 --dtype half --seed 7"
        " --gpu-memory-utilization 0.85 --served-model-name qwen chat --no-enable-prefix-caching"
        " --trust-remote-code --quantization fp8 --kv-cache-dtype fp8 --revision main"
        " --shutdown-timeout 90 --enable-auto-tool-choice --tool-call-parser hermes"
    )
    assert made == {
        "model": {
            "uri": "hf://Qwen/Qwen3-8B",
            "name": "qwen",
            "aliases": ["chat"],
            "trustRemoteCode": True,
            "quantization": "fp8",
            "revision": "main",
        },
        "engine": {
            "type": "vllm",
            "image": "vllm/vllm-openai:v0.24.0",
            "kvCacheDtype": "fp8",
            "config": {
                "maxModelLen": 32768,
                "dtype": "float16",
                "seed": 7,
                "gpuMemoryUtilization": 0.85,
                "enablePrefixCaching": False,
            },
            "args": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
        },
        "lifecycle": {"drainSeconds": 90},
        "resources": {"limits": {"nvidia.com/gpu": 2}},
        "parallelism": {"tensor": 2},
    }


def test_kvasirs_engine_takes_none_of_vllms_other_flags() -> None:
    draft = convert_words(shlex.split("vllm serve a/b --max-num-seqs 8 --foo 1"), "kvasir")
    assert draft.document["spec"]["engine"] == {"config": {"maxNumSeqs": 8}}
    assert draft.lost == ["--foo 1: it is vLLM's; see kvasir serve --help"]


@pytest.mark.parametrize(
    ("flags", "lost"),
    [
        ("--api-key sekret", "--api-key: routers bring no key to engines"),
        ("-pp 2", "--pipeline-parallel-size: a replica is one pod"),
        ("--data-parallel-size 2", "--data-parallel-size: use spec.replicas"),
        ("--block-size 24", "spec.engine.config.blockSize must be"),
        ("--quantization bitsandbytes", "spec.model.quantization must be"),
        ("--kv-events-config {}", "--kv-events-config: it is set by Kvasir"),
        ("--lora-modules a=b", "--lora-modules: use spec.adapters"),
    ],
)
def test_what_has_no_counterpart_is_told_by_name(flags: str, lost: str) -> None:
    draft = convert_words(shlex.split(f"vllm serve a/b {flags}"), "vllm")
    [said] = draft.lost
    assert said.startswith(lost)
    assert "sekret" not in str(draft.document) + said


def test_one_that_is_said_to_be_one_is_not_lost() -> None:
    assert spec("vllm serve a/b --pipeline-parallel-size 1 --max-model-len 16k")["engine"][
        "config"
    ] == {"maxModelLen": 16000}


def test_a_directory_has_to_come_onto_a_volume() -> None:
    draft = convert_words(["vllm", "serve", "/data/Llama-3"], "vllm")
    assert draft.document["spec"]["model"]["uri"] == "pvc://models/Llama-3"
    assert "/data/Llama-3 is a directory; put it on a volume" in draft.lost[0]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["vllm", "serve", "--port", "1"], "the command names no model"),
        (["vllm", "serve", "a/b/c"], "spec.model.uri"),
    ],
)
def test_what_cannot_be_converted(words: list[str], problem: str) -> None:
    with pytest.raises(ConvertError, match=problem):
        convert_words(words, "vllm")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-1-8b-instruct"),
        ("Qwen/Qwen3-8B@main", "qwen3-8b"),
        ("x/---", "model"),
        ("a" * 80, "a" * 63),
    ],
)
def test_names(model: str, name: str) -> None:
    assert name_of_model(model) == name
