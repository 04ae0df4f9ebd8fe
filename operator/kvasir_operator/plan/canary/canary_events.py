"""Events that a canary's turns are told by."""

from __future__ import annotations

from typing import NamedTuple

from kvasir.resource.deployment_status import Reason
from kvasir.resource.rollout.rollout_status import RolloutPhase, RolloutStatus


class CanaryEvent(NamedTuple):
    """Event about the LLMDeployment."""

    type: str
    """Normal or Warning."""
    reason: Reason
    message: str


def event_between(before: RolloutStatus | None, after: RolloutStatus | None) -> CanaryEvent | None:
    """Return the event of the way from one state to the next; None if nothing has turned."""
    if after is None:
        return None
    was = (before.phase, before.id) if before is not None else None
    if was == (after.phase, after.id):
        return None
    canary, of = after.canary_revision, f"{after.step} of {after.steps}"
    if after.phase == RolloutPhase.STARTING:
        message = f"Step {of}: {after.replicas} pods of revision {canary} start."
        return CanaryEvent("Normal", Reason.CANARY_STARTING, message)
    if after.phase == RolloutPhase.ANALYSING:
        message = f"Step {of}: revision {canary} gets {after.weight} % of the requests."
        return CanaryEvent("Normal", Reason.CANARY_ANALYSING, message)
    if after.phase == RolloutPhase.PAUSED:
        message = f"Step {of} pauses; it is promoted by kvasir.dev/rollout: promote {after.id}."
        return CanaryEvent("Normal", Reason.CANARY_PAUSED, message)
    if after.phase == RolloutPhase.PROMOTING:
        message = f"All replicas become revision {canary}. {after.message}"
        return CanaryEvent("Normal", Reason.CANARY_PROMOTING, message)
    if after.phase == RolloutPhase.PROMOTED:
        message = f"Revision {canary} is the stable one."
        return CanaryEvent("Normal", Reason.CANARY_PROMOTED, message)
    message = f"Revision {canary} was rolled back at step {of} ({after.reason}): {after.message}"
    return CanaryEvent("Warning", Reason.CANARY_ROLLED_BACK, message)
