"""One event for each turn of a canary, and none between."""

from __future__ import annotations

import pytest

from kvasir.resource.rollout.rollout_status import RolloutPhase, RolloutStatus
from kvasir_operator.plan.canary.canary_events import event_between


def state(phase: RolloutPhase, step: int = 1) -> RolloutStatus:
    return RolloutStatus(
        phase=phase.value,
        id=f"new.1.{step}",
        canary_revision="new",
        step=step,
        steps=2,
        started_at="2026-01-02T03:04:05Z",
        reason="ITLIncreased",
        message="It is slow.",
    )


@pytest.mark.parametrize("phase", RolloutPhase)
def test_every_phase_is_told_once(phase: RolloutPhase) -> None:
    told = event_between(None, state(phase))
    assert told is not None
    assert told.type == ("Warning" if phase is RolloutPhase.ROLLED_BACK else "Normal")
    assert told.reason == f"Canary{phase.value}"
    again = state(phase).model_copy(update={"message": "Other figures."})
    assert event_between(state(phase), again) is None


def test_another_step_is_told() -> None:
    phase = RolloutPhase.ANALYSING
    assert event_between(state(phase), state(phase, 2)) is not None
    assert event_between(state(phase), None) is None


def test_a_rollback_says_why() -> None:
    told = event_between(state(RolloutPhase.ANALYSING), state(RolloutPhase.ROLLED_BACK))
    assert told is not None
    assert "ITLIncreased" in told.message
    assert "It is slow." in told.message
