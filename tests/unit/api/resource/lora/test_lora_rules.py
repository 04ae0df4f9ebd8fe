"""Rules of LoRA adapters, of files: in the words of the API server."""

from __future__ import annotations

from typing import Any

import pytest
from support.lora_cases import HUB, LORA, REFUSED_LORA, spec

from kvasir.resource import LLMDeployment

IN_OTHER_WORDS = {
    "adapters twice": "adapters has a more than once; give each another name",
    "adapter's name": "should match pattern",
    "too many adapters": "at most 32",
}
OF_CLUSTERS_ALONE = ("adapter in no image",)


def parse(content: dict[str, Any], name: str = "d") -> LLMDeployment:
    head = {"apiVersion": "kvasir.dev/v1alpha1", "kind": "LLMDeployment"}
    return LLMDeployment.model_validate({**head, "metadata": {"name": name}, "spec": content})


@pytest.mark.parametrize("case", LORA)
def test_taken(case: str) -> None:
    assert parse(LORA[case]).spec.adapters is not None


@pytest.mark.parametrize("case", [it for it in REFUSED_LORA if it not in OF_CLUSTERS_ALONE])
def test_refused(case: str) -> None:
    content, told = REFUSED_LORA[case]
    with pytest.raises(ValueError) as refusal:
        parse(content)
    assert IN_OTHER_WORDS.get(case, told) in str(refusal.value)


def test_an_adapter_has_not_the_deployments_own_name() -> None:
    with pytest.raises(ValueError, match=r"spec\.model or spec\.adapters serves d more than once"):
        parse(spec(HUB, ("d", "org/a")))
    assert parse(spec(HUB, ("d", "org/a"), model={"name": "m"})).claimed_names == ["m", "d"]
