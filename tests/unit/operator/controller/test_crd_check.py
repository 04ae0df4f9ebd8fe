from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir.resource.crd_writer import crd
from kvasir_operator.controller.crd_check import CRDMissingError, missing_fields


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
