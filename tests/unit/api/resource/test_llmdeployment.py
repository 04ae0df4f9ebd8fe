from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from kvasir.resource import LLMDeployment
from kvasir.resource.strict_model import StrictModel


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in [schema, *schema["$defs"].values()]:
        yield from part["properties"].items()


def test_every_field_is_described_and_has_the_files_own_name() -> None:
    fields = [item for part in StrictModel.__subclasses__() for item in part.model_fields.items()]
    assert len(fields) > 30
    assert [name for name, field in fields if not field.description] == []
    names = {name for name, _ in properties(LLMDeployment.model_json_schema())}
    assert {"apiVersion", "maxNumBatchedTokens", "nvidia.com/gpu", "drainSeconds"} <= names


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
