"""Servers of others on one machine: the router's discovery file, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvasir.cli.local.upstreams import unknown_fallbacks, upstream_problems, upstream_replicas
from kvasir.resource import LLMDeployment
from kvasir_router.discovery.file_schema import FileConfig

PEM = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"


def deployment(*urls: dict[str, Any], name: str = "m", **spec: Any) -> LLMDeployment:
    external = {"external": {"urls": list(urls)}} if urls else {}
    model = {} if urls else {"uri": "builtin://kvasir-tiny"}
    return LLMDeployment.model_validate(
        {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": name},
            "spec": {"model": model, **external, **spec},
        }
    )


def test_the_router_reads_what_is_written(tmp_path: Path) -> None:
    url = {
        "url": "https://a.example/v1",
        "model": "large-2",
        "key": {"env": "KEY"},
        "caBundle": PEM,
        "serverName": "b.example",
        "healthPath": "/health",
    }
    plain = {"url": "http://127.0.0.1:8000"}
    replicas = upstream_replicas(deployment(url, plain), tmp_path)
    content = {"models": [{"name": "m", "replicas": replicas}]}
    [model] = FileConfig.model_validate(content, context=lambda spec: None).models
    full, bare = model.replicas
    assert full.is_upstream
    assert (full.model, full.key_env) == ("large-2", "KEY")
    assert (full.server_name, full.health_path) == ("b.example", "/health")
    assert full.ca_file is not None
    assert Path(full.ca_file).read_text() == PEM
    assert bare.is_upstream  # a client's key must not get there either
    assert [each.id for each in model.replicas] == ["m-url-0", "m-url-1"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ({"secretRef": {"name": "s", "key": "k"}}, "secretRef names a Secret of a cluster"),
        ({"env": "MISSING"}, "variable MISSING is not set"),
        ({"file": "/no/such/file"}, "there is no file /no/such/file"),
    ],
)
def test_a_key_that_is_not_there_is_told(key: dict[str, Any], words: str) -> None:
    given = deployment({"url": "https://a.example/v1", "key": key})
    [problem] = upstream_problems(given, {"OTHER": "x"})
    assert words in problem


def test_a_key_that_is_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k")
    keys = ({"env": "KEY"}, {"file": str(file)})
    given = deployment(*({"url": "https://a.example/v1", "key": key} for key in keys))
    assert not list(upstream_problems(given, {"KEY": "k"}))


def test_a_fallback_that_is_no_model_of_the_file_is_told() -> None:
    one = deployment(name="one", fallbacks=["two", "three"])
    [problem] = unknown_fallbacks([one, deployment(name="two")])
    assert "one: spec.fallbacks names three" in problem


def test_pods_are_a_clusters() -> None:
    given = deployment({"url": "https://a.example/v1"})
    content = given.model_dump(by_alias=True, exclude_unset=True)
    content["spec"]["external"]["pods"] = {"matchLabels": {"a": "b"}}
    [problem] = upstream_problems(LLMDeployment.model_validate(content), {})
    assert "spec.external.pods are a cluster's" in problem
