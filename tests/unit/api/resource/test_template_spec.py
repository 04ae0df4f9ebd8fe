from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from support.templates import FULL, TAKEN

from kvasir.resource.template_spec import ENGINE_FIELDS, POD_FIELDS, Template


def test_what_is_not_named_is_passed_on_as_it_is() -> None:
    template = Template.model_validate(FULL)
    assert template.pod_spec() == FULL["spec"] | {
        "containers": [
            # An API server takes amounts either way
            {
                **FULL["spec"]["containers"][0],
                "resources": {"limits": {"rdma/ib": "1"}, "claims": [{"name": "net"}]},
            },
            FULL["spec"]["containers"][1],
        ]
    }
    assert template.metadata.labels == {"team": "a"}


@pytest.mark.parametrize("case", TAKEN)
def test_what_kvasir_sets_is_refused_with_the_remedy(case: str) -> None:
    given, told = TAKEN[case]
    with pytest.raises(ValidationError) as refusal:
        Template.model_validate(given)
    assert told in str(refusal.value)


def test_every_field_that_is_refused_is_tried() -> None:
    assert {*POD_FIELDS, *(f"engine's {name}" for name in ENGINE_FIELDS)} <= TAKEN.keys()


@pytest.mark.parametrize("field", ENGINE_FIELDS)
def test_other_containers_have_these_fields(field: str) -> None:
    given, _ = TAKEN[f"engine's {field}"]
    other: dict[str, Any] = {**given["spec"]["containers"][0], "name": "proxy"}
    template = Template.model_validate({"spec": {"containers": [other]}})
    assert template.pod_spec() == {"containers": [other]}
