"""What is read of pods that may be gone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from harness.proof.pod_watch import asked_to_go, restarts, serves_since

THEN = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


def test_a_pod_was_asked_to_go_before_its_grace() -> None:
    metadata = {"deletionTimestamp": "2026-01-01T12:01:15Z", "deletionGracePeriodSeconds": 45}
    assert asked_to_go({"metadata": metadata}) == THEN


def test_when_a_pod_became_ready_and_how_often_it_was_restarted() -> None:
    status: dict[str, Any] = {
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T12:00:30Z"},
        ],
        "containerStatuses": [{"restartCount": 1}, {"restartCount": 2}],
    }
    assert serves_since({"status": status}) == THEN
    assert restarts({"status": status}) == 3
    assert restarts({"status": {}}) == 0, "not started yet"
