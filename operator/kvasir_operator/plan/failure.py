"""Failure to carry out a part of a plan, as the status tells it."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.resource.deployment_status import Reason


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that could not be done."""

    what: str
    """Kind and name of the object; "" = the LLMDeployment as a whole."""
    message: str
    """A sentence, with the API server's words."""
    reason: Reason
    passing: bool
    """The same may succeed later though nobody changes the resource."""
