from __future__ import annotations

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
            "m: spec.engine.env A: valueFrom names a Secret of a cluster; give value",
        ),
        (
            {"model": {"uri": "hf://a/b"}, "parallelism": {"tensor": "auto"}},
            "spec.parallelism.tensor auto chooses among a cluster's GPUs",
        ),
    ],
)
def test_what_needs_a_cluster_is_said(spec: dict[str, Any], sentence: str) -> None:
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


def deployment(spec: dict[str, Any]) -> LLMDeployment:
    return LLMDeployment.model_validate(
        {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "m", "namespace": "n", "labels": {"a": "b"}},
            "spec": spec,
        }
    )
