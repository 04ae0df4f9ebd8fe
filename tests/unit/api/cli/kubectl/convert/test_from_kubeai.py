"""KubeAI's Models."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kvasir.cli.kubectl.convert.conversion import convert_text
from kvasir.cli.kubectl.convert.draft import ConvertError, Draft


def convert(**spec: Any) -> Draft:
    document = {
        "apiVersion": "kubeai.org/v1",
        "kind": "Model",
        "metadata": {"name": "qwen"},
        "spec": {"engine": "VLLM", "features": ["TextGeneration"], **spec},
    }
    [draft] = convert_text(yaml.safe_dump(document), "f", "vllm")
    return draft


def test_a_model() -> None:
    draft = convert(
        url="hf://Qwen/Qwen3-8B",
        args=["--max-model-len=16384", "--disable-log-requests"],
        env={"A": 1, "HF_TOKEN": "sekret"},
        envFrom=[{"secretRef": {"name": "s"}}],
        resourceProfile="nvidia-gpu-l4-24gb:2",
        minReplicas=0,
        maxReplicas=3,
        targetRequests=20,
        scaleDownDelaySeconds=120,
        loadBalancing={"strategy": "PrefixHash", "prefixHash": {"meanLoadFactor": 125}},
        priorityClassName="high",
        cacheProfile="efs",
        files=[{"path": "/a", "content": "b"}],
        owner="me",
    )
    assert draft.document["spec"] == {
        "model": {"uri": "hf://Qwen/Qwen3-8B"},
        "engine": {
            "type": "vllm",
            "image": "vllm/vllm-openai:v0.24.0",
            "config": {"maxModelLen": 16384},
            "args": ["--disable-log-requests"],
            "env": [{"name": "A", "value": "1"}],
            "envFrom": [{"secretRef": {"name": "s"}}],
        },
        "autoscaling": {
            "minReplicas": 0,
            "maxReplicas": 3,
            "target": 20,
            "behavior": {"scaleDown": {"stabilizationSeconds": 120}},
        },
        "router": {"policy": "prefix_hash"},
        "podTemplate": {"priorityClassName": "high"},
        "resources": {"limits": {"nvidia.com/gpu": 2}},
        "parallelism": {"tensor": 2},
    }
    assert [sentence.partition(": ")[0] for sentence in draft.lost] == [
        "spec.env.HF_TOKEN",
        "spec.resourceProfile nvidia-gpu-l4-24gb",
        "spec.cacheProfile",
        "spec.files",
        "spec.loadBalancing.prefixHash.meanLoadFactor",
        "spec.owner",
    ]
    assert "sekret" not in str(draft.document) + str(draft.lost)


def test_without_autoscaling_there_are_so_many_replicas() -> None:
    draft = convert(url="pvc://models/q", autoscalingDisabled=True, replicas=2, maxReplicas=5)
    assert draft.document["spec"]["replicas"] == 2
    assert "autoscaling" not in draft.document["spec"]
    assert draft.document["spec"]["model"]["uri"] == "pvc://models/q"


def test_what_a_uri_brings_beside_it() -> None:
    draft = convert(url="hf://a/b?pull=false", features=["TextEmbedding"])
    assert draft.document["spec"]["model"]["uri"] == "hf://a/b"
    assert [each.partition(": ")[0] for each in draft.lost] == [
        "spec.url ?pull=false",
        "spec.features TextEmbedding",
    ]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"url": "ollama://gemma", "engine": "OLlama"}, "qwen: engine OLlama has no counterpart"),
        ({"url": "gs://bucket/m"}, r"qwen: spec\.model\.uri"),
    ],
)
def test_what_cannot_be_converted(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConvertError, match=problem):
        convert(**spec)
