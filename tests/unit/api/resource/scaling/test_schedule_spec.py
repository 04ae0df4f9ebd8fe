"""Schedules that files refuse: the field, the value, the remedy. What an API server refuses is in
tests/support/resource_cases.py."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from support.resource_cases import ACCEPTED, scheduled

from kvasir.resource import LLMDeployment
from kvasir.resource.deployment_files import sentences


def told(spec: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        LLMDeployment.model_validate(
            {
                "apiVersion": "kvasir.dev/v1alpha1",
                "kind": "LLMDeployment",
                "metadata": {"name": "own"},
                "spec": spec,
            }
        )
    return " ".join(sentences(caught.value))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"start": "0 24 * * *"}, ("schedules[0].start", "'0 24 * * *'", "write five fields")),
        ({"end": "0 8 30 2 *"}, ("schedules[0].end", "Bad day-of-month", "write five fields")),
        ({"start": "0 20-8 * * *"}, ("schedules[0].start", "Bad hour", "MON-FRI")),
        ({"timezone": "Mars/Base"}, ("schedules[0].timezone", "'Mars/Base'", "Europe/Berlin")),
        ({"end": None}, ("either at end or after durationSeconds",)),
        ({"minReplicas": 9}, ("is above that one's maxReplicas", "raise maxReplicas")),
        ({"minReplicas": None}, ("schedules[0].minReplicas",)),
    ],
)
def test_refused(more: dict[str, Any], words: tuple[str, ...]) -> None:
    found = told(scheduled(**more))
    assert [word for word in words if word not in found] == []


def test_a_schedule_without_a_name_is_called_by_its_start() -> None:
    document = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "own"},
        "spec": ACCEPTED["schedules"],
    }
    scaling = LLMDeployment.model_validate(document).spec.autoscaling
    assert scaling is not None
    assert [each.title for each in scaling.schedules or ()] == ["work", "*/30 0-6/2 1,15 JAN-mar *"]
