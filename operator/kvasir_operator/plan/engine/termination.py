"""Termination times of an engine pod: preStop, drain, grace period."""

from __future__ import annotations

from typing import NamedTuple

from kvasir.resource.engine_spec import Engine
from kvasir.resource.spec import Lifecycle

MARGIN_SECONDS = 15
"""Time to hand over what still runs after the drain, and for the process to end."""


class TerminationTimes(NamedTuple):
    """Seconds, one after the other, from a pod's deletion on."""

    pre_stop: int
    """The engine still takes requests, while routers turn away."""
    drain: int
    """After SIGTERM it only ends those it has."""
    grace: int
    """Seconds from the deletion until it is killed."""


def ending(lifecycle: Lifecycle, engine: Engine | None = None) -> TerminationTimes:
    """Return the times that `lifecycle` means for an engine, Kvasir's by default. One that SIGTERM
    ends at once takes its drain time before it."""
    pre_stop, drain = lifecycle.pre_stop_seconds, lifecycle.drain_seconds
    grace = pre_stop + drain + MARGIN_SECONDS
    if engine is not None and engine.traits.drain == "wait" and not engine.drains_on_sigterm:
        return TerminationTimes(pre_stop + drain, 0, grace)
    return TerminationTimes(pre_stop, drain, grace)
