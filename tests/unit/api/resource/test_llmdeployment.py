from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from kvasir.resource import LLMDeployment
from kvasir.resource.strict_model import StrictModel


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in [schema, *schema["$defs"].values()]:
        yield from part.get("properties", {}).items()


def test_every_field_is_described_and_has_the_files_own_name() -> None:
    fields = [item for part in StrictModel.__subclasses__() for item in part.model_fields.items()]
    assert len(fields) > 30
    assert [name for name, field in fields if not field.description] == []
    names = {name for name, _ in properties(LLMDeployment.model_json_schema())}
    assert {"apiVersion", "maxNumBatchedTokens", "ephemeral-storage", "drainSeconds"} <= names


def test_every_string_and_list_is_bounded() -> None:
    def unbounded(name: str, field: dict[str, Any]) -> Iterator[str]:
        for part in [field, *field.get("anyOf", ()), field.get("items", {})]:
            limits = {"string": "maxLength", "array": "maxItems"}
            limit = limits.get(part.get("type", ""))
            if limit and limit not in part and not {"enum", "const"} & part.keys():
                yield name

    schema = LLMDeployment.model_json_schema()
    assert [u for item in properties(schema) for u in unbounded(*item)] == []


def test_a_deployment_does_not_change() -> None:
    deployment = LLMDeployment.model_validate(
        {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "a"},
            "spec": {"model": {"uri": "hf://a/b@r"}},
        }
    )
    assert deployment.spec.model.parsed_uri.revision == "r"
    with pytest.raises(ValidationError, match="frozen"):
        deployment.spec.replicas = 2  # type: ignore[misc]


def stored(spec: dict[str, Any]) -> dict[str, Any]:
    """As an API server gives it."""
    return {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "labels": {"x": "y"}},
        "spec": spec,
        "status": {"phase": "Ready"},
    }


def test_stored_fields_of_a_newer_definition_are_named_and_left_out() -> None:
    spec = {
        "model": {"uri": "org/model", "voice": {"pitch": 2}},
        "engine": {"env": [{"name": "A", "value": "x"}, {"name": "B", "value": "y", "when": 1}]},
        "sharding": ["x"],
    }
    resource = stored(spec)
    before = repr(resource)
    found = LLMDeployment.from_cluster(resource)
    assert found.unknown_fields == ("spec.engine.env[1].when", "spec.model.voice", "spec.sharding")
    assert [each.value for each in found.spec.engine.env] == ["x", "y"]
    assert repr(resource) == before, "what is stored is not changed"
    assert LLMDeployment.from_cluster(stored({"model": {"uri": "org/model"}})).unknown_fields == ()


def test_what_is_wrong_otherwise_is_refused_whatever_else_is_unknown() -> None:
    with pytest.raises(ValidationError, match="replicas"):
        LLMDeployment.from_cluster(stored({"model": {"uri": "a/b"}, "new": 1, "replicas": -1}))


def test_files_have_no_unknown_fields() -> None:
    content = stored({"model": {"uri": "a/b"}, "new": 1})
    del content["status"], content["metadata"]["uid"]
    with pytest.raises(ValidationError, match="new"):
        LLMDeployment.model_validate(content)
