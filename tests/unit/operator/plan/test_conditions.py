from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvasir.resource.deployment_status import MAX_MESSAGE, ConditionType, Reason
from kvasir.resource.spec import Lifecycle
from kvasir_operator.plan.conditions import Conditions
from kvasir_operator.plan.engine.termination import ending

THEN = datetime(2026, 1, 1, tzinfo=UTC)
READY = ConditionType.READY


def after(before: list[dict[str, Any]], status: bool | None, message: str = "") -> dict[str, Any]:
    conditions = Conditions(before, generation=2, now=THEN + timedelta(hours=1))
    conditions.set(READY, status, Reason.STARTING, message)
    (found,) = conditions.as_list()
    return found


def test_the_time_moves_with_the_status_alone() -> None:
    first = after([], False)
    old = [{**first, "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]
    same = after(old, False, "another message")
    assert same["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert same["observedGeneration"] == 2
    assert same["message"] == "another message"
    assert after(old, True)["lastTransitionTime"] == "2026-01-01T01:00:00Z"
    assert after(old, None)["status"] == "Unknown"


def test_a_long_message_is_cut() -> None:
    assert len(after([], False, "x" * 5000)["message"]) == MAX_MESSAGE


@pytest.mark.parametrize(("pre_stop", "drain"), [(0, 0), (5, 45), (300, 3600)])
def test_a_pod_is_killed_only_after_its_drain(pre_stop: int, drain: int) -> None:
    times = ending(Lifecycle.model_validate({"preStopSeconds": pre_stop, "drainSeconds": drain}))
    assert (times.pre_stop, times.drain) == (pre_stop, drain)
    assert times.grace > pre_stop + drain
