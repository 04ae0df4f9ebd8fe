"""KServe's InferenceServices."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kvasir.cli.kubectl.convert.conversion import convert_text
from kvasir.cli.kubectl.convert.draft import ConvertError, Draft

SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: llama
  namespace: team
  labels: {owner: a}
  annotations:
    serving.kserve.io/deploymentMode: RawDeployment
    serving.kserve.io/autoscalerClass: keda
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 4
    scaleMetric: concurrency
    scaleTarget: 8
    canaryTrafficPercent: 10
    timeout: 600
    nodeSelector: {gpu: l40s}
    tolerations: [{key: nvidia.com/gpu, operator: Exists}]
    model:
      modelFormat: {name: huggingface}
      storageUri: hf://meta-llama/Llama-3.1-8B-Instruct
      runtime: kserve-huggingfaceserver
      args: [--model_name=llama3, --max_model_len=8192, --backend=vllm]
      env:
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
        - {name: VLLM_LOGGING_LEVEL, value: INFO}
      resources:
        limits: {nvidia.com/gpu: "2", memory: 64Gi, amd.com/gpu: 1}
        requests: {cpu: 4}
  transformer:
    containers: [{name: t}]
"""
EMPTY: dict[str, Any] = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "m"},
}


def convert(document: Any) -> Draft:
    text = document if isinstance(document, str) else yaml.safe_dump(document)
    [draft] = convert_text(text, "f", "vllm")
    return draft


def test_a_service() -> None:
    draft = convert(SERVICE)
    assert draft.document["metadata"] == {
        "name": "llama",
        "namespace": "team",
        "labels": {"owner": "a"},
    }
    assert draft.document["spec"] == {
        "model": {
            "uri": "hf://meta-llama/Llama-3.1-8B-Instruct",
            "name": "llama3",
            "secretRef": {"name": "hub", "key": "token"},
        },
        "engine": {
            "type": "vllm",
            "image": "vllm/vllm-openai:v0.24.0",
            "config": {"maxModelLen": 8192},
            "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}],
        },
        "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "target": 8},
        "rollout": {"canary": {"steps": [{"weight": 10, "pause": {}}]}},
        "podTemplate": {
            "nodeSelector": {"gpu": "l40s"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
        "resources": {
            "limits": {"memory": "64Gi", "nvidia.com/gpu": 2},
            "requests": {"cpu": "4"},
        },
        "parallelism": {"tensor": 2},
    }
    fields = {sentence.partition(": ")[0] for sentence in draft.lost}
    assert fields == {
        "metadata.annotations.serving.kserve.io/autoscalerClass",
        "spec.predictor.model.runtime",
        "spec.predictor.model.resources.limits.amd.com/gpu",
        "spec.predictor.timeout",
        "spec.transformer.containers",
    }


def test_a_container_of_vllm() -> None:
    container = {
        "name": "kserve-container",
        "image": "vllm/vllm-openai:v0.30.0",
        "command": ["vllm", "serve"],
        "args": ["Qwen/Qwen3-8B", "--port=8080"],
    }
    predictor = {"containers": [container, {"name": "sidecar"}], "minReplicas": 3, "maxReplicas": 3}
    draft = convert(EMPTY | {"spec": {"predictor": predictor}})
    made = draft.document["spec"]
    assert made["model"]["uri"] == "hf://Qwen/Qwen3-8B"
    assert made["engine"] == {"type": "vllm", "image": "vllm/vllm-openai:v0.30.0"}
    assert made["replicas"] == 3
    assert draft.lost == ["spec.predictor.containers sidecar: see spec.template for sidecars"]


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"modelFormat": {"name": "sklearn"}}, "m: modelFormat sklearn is no language model's"),
        ({"modelFormat": {"name": "vllm"}}, "m: no storageUri and no model among its arguments"),
        ({"storageUri": "gs://bucket/x"}, r"m: spec\.model\.uri"),
    ],
)
def test_what_cannot_be_converted(model: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConvertError, match=problem):
        convert(EMPTY | {"spec": {"predictor": {"model": model}}})


def test_a_token_in_the_open_is_not_taken_along() -> None:
    model = {"storageUri": "hf://a/b", "env": [{"name": "HF_TOKEN", "value": "hf_sekret"}]}
    draft = convert(EMPTY | {"spec": {"predictor": {"model": model}}})
    assert "hf_sekret" not in str(draft.document) + str(draft.lost)
    assert "write the token into a Secret" in draft.lost[0]
