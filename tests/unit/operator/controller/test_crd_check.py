from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir.resource.crd_writer import crd
from kvasir_operator.controller.crd_check import (
    CRDMissingError,
    missing_fields,
    missing_kind,
    require_classes,
    without_fields,
)


class Cluster:
    """An API server that has this definition."""

    def __init__(self, definition: dict[str, Any] | None) -> None:
        self.definition = definition

    async def get(self, *_: Any) -> dict[str, Any] | None:
        return self.definition


async def test_the_same_lacks_nothing() -> None:
    assert await missing_fields(Cluster(crd())) == ()  # type: ignore[arg-type]


async def test_an_older_one_lacks_what_came_later() -> None:
    older = copy.deepcopy(crd())
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["spec"]["properties"]["router"]
    del schema["status"]["properties"]["conditions"]["items"]["properties"]["reason"]
    assert await missing_fields(Cluster(older)) == (  # type: ignore[arg-type]
        "spec.router",
        "status.conditions[].reason",
    )


async def test_none_is_an_error_with_the_remedy() -> None:
    with pytest.raises(CRDMissingError, match="install the chart with crds"):
        await missing_fields(Cluster(None))  # type: ignore[arg-type]


async def test_the_first_kind_that_is_not_served() -> None:
    class Served(Cluster):
        async def serves(self, api_version: str, plural: str) -> bool:
            return plural in there

    there = {"llmdeployments", "llmdeploymentclasses"}
    assert await missing_kind(Served(None)) == "modelnames.kvasir.dev"  # type: ignore[arg-type]
    there.add("modelnames")
    assert await missing_kind(Served(None)) is None  # type: ignore[arg-type]


def test_a_definition_without_classes_is_not_worked_with() -> None:
    require_classes(["spec.router", "status.conditions[].reason"])
    with pytest.raises(CRDMissingError, match=r"lacks status\.className; upgrade it"):
        require_classes(["status.className"])


def test_a_status_has_only_what_the_definition_knows() -> None:
    status = {"phase": "Ready", "cache": {"phase": "done", "bytes": 1}, "conditions": [{"a": 1}]}
    assert without_fields(status, ()) == status
    lacking = ("status.phase", "status.cache.bytes", "spec.cache")
    assert without_fields(status, lacking) == {
        "cache": {"phase": "done"},
        "conditions": [{"a": 1}],
    }
