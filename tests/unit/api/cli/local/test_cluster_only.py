from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvasir.cli.local.cluster_only import cluster_only
from kvasir.resource import LLMDeployment


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"model": {"uri": "s3://bucket/x"}}, "m: spec.model.uri: model URI 's3://bucket/x'"),
        ({"model": {"uri": "pvc://claim/x"}}, "pvc:// is not supported without a cluster"),
        (
            {
                "model": {"uri": "hf://a/b"},
                "engine": {
                    "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
                },
            },
            "m: spec.engine.env A: valueFrom takes a value from a cluster; give value",
        ),
        (
            {
                "model": {"uri": "hf://a/b"},
                "engine": {"envFrom": [{"configMapRef": {"name": "c"}}]},
            },
            "m: spec.engine.envFrom takes variables from a cluster; remove it",
        ),
        (
            {"model": {"uri": "hf://a/b"}, "engine": {"type": "custom", "image": "own:1"}},
            "m: spec.engine.type custom: kvasir up runs no images; give spec.engine.command",
        ),
        (
            {"model": {"uri": "hf://a/b"}, "engine": {"type": "custom", "command": ["serve"]}},
            "m: spec.engine.command has no $(KVASIR_PORT): kvasir up chooses each replica's port",
        ),
        (
            {"model": {"uri": "hf://a/b"}, "engine": {"type": "vllm"}},
            "m: spec.engine.type vllm: 'vllm' is not on PATH; install it",
        ),
        (
            {"model": {"uri": "hf://a/b"}, "parallelism": {"tensor": "auto"}},
            "spec.parallelism.tensor auto chooses among a cluster's GPUs",
        ),
        (
            {"model": {"uri": "hf://a/b"}, "resources": {"limits": {"amd.com/gpu": 1}}},
            "m: spec.resources.limits amd.com/gpu is handed out by a cluster's device plugin",
        ),
        (
            {
                "model": {"uri": "hf://a/b"},
                "resources": {"gpuClaim": {"deviceClassName": "gpu.nvidia.com"}},
            },
            "m: spec.resources.gpuClaim asks a cluster for GPUs; write resources.limits nvidia.com",
        ),
        (
            {"model": {"uri": "hf://a/b"}, "profile": "h100"},
            "m: spec.profile h100 is of an LLMDeploymentClass, which only a cluster has; remove it",
        ),
    ],
)
def test_what_needs_a_cluster_is_said(
    spec: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = cluster_only(deployment(spec))
    assert sentence in problem


def test_what_only_means_something_on_a_cluster_is_no_hindrance() -> None:
    spec = {
        "model": {"uri": "hf://a/b", "secretRef": {"name": "s"}},
        "cache": {"pvc": {"size": "5Gi"}},
        "podTemplate": {"nodeSelector": {"a": "b"}},
        "paused": True,
    }
    assert not list(cluster_only(deployment(spec)))


def test_a_program_that_is_there_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not list(cluster_only(deployment({"model": {"uri": "a/b"}, "engine": {"type": "vllm"}})))
    custom = {"type": "custom", "command": ["serve", "--port=$(KVASIR_PORT)"]}
    assert not list(cluster_only(deployment({"model": {"uri": "a/b"}, "engine": custom})))


def deployment(spec: dict[str, Any]) -> LLMDeployment:
    return LLMDeployment.model_validate(
        {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "m", "namespace": "n", "labels": {"a": "b"}},
            "spec": spec,
        }
    )
