"""Conditions as KEP-1623 has them: a time of transition that moves only when the status does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kvasir.kube.objects import Object
from kvasir.resource.deployment_status import MAX_MESSAGE, ConditionType, Reason
from kvasir_operator.objects import format_time


class ConditionValue(NamedTuple):
    """A condition as a step of the plan sets it."""

    type: ConditionType
    status: bool | None
    """None = Unknown."""
    reason: Reason
    message: str = ""


class Conditions:
    """The conditions of one status, in the order in which they are set first."""

    def __init__(self, before: Iterable[Mapping[str, Any]], generation: int, now: datetime) -> None:
        self._before = {each.get("type"): each for each in before}
        self._generation = generation
        self._now = format_time(now)
        self._set: dict[ConditionType, Object] = {}

    def set(
        self, kind: ConditionType, status: bool | None, reason: Reason, message: str = ""
    ) -> None:
        """Set a condition; `status` None = Unknown."""
        text = "Unknown" if status is None else str(status)
        before = self._before.get(kind.value, {})
        since = before.get("lastTransitionTime") if before.get("status") == text else None
        self._set[kind] = {
            "type": kind.value,
            "status": text,
            "observedGeneration": self._generation,
            "lastTransitionTime": since or self._now,
            "reason": reason.value,
            "message": message[:MAX_MESSAGE],
        }

    def as_list(self) -> list[Object]:
        """Return the conditions as the status has them."""
        return list(self._set.values())
