"""Rules of engine types, of files: in the words of the API server."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine_cases import ENGINES, REFUSED_ENGINES

from kvasir.resource import LLMDeployment

BY_SCHEMA = ("should match", "Unsupported value")
ON_A_CLUSTER = "needs engine.image on a cluster"
PER_FIELD = {"custom config": "engine.config.dtype has no meaning with engine.type custom"}


def parse(spec: dict[str, Any]) -> LLMDeployment:
    return LLMDeployment.model_validate(
        {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "d"},
            "spec": spec,
        }
    )


@pytest.mark.parametrize("case", ENGINES)
def test_accepted(case: str) -> None:
    assert parse(ENGINES[case]).spec.model.uri == "hf://org/model"


@pytest.mark.parametrize("case", REFUSED_ENGINES)
def test_refused(case: str) -> None:
    spec, told = REFUSED_ENGINES[case]
    if ON_A_CLUSTER in told:
        told = "engine.type custom needs engine.image, on a cluster, or engine.command"
    with pytest.raises(ValueError) as refusal:
        parse(spec)
    if not told.startswith(BY_SCHEMA):
        assert PER_FIELD.get(case, told) in str(refusal.value)
