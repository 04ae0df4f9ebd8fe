"""Words about a canary: the annotation that the operator reads, and what it does then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kvasir.cli.kubectl.cluster_session import ClusterError, ClusterSession
from kvasir.kube.objects import Object, name_of
from kvasir.resource.rollout.rollout_status import COMMAND, RolloutCommand, RolloutPhase

_POLL_SECONDS = 0.5
_UNDER_WAY = (RolloutPhase.STARTING, RolloutPhase.ANALYSING, RolloutPhase.PAUSED)
_PHASES: Mapping[RolloutCommand, tuple[RolloutPhase, ...]] = {
    RolloutCommand.PROMOTE: _UNDER_WAY,
    RolloutCommand.PROMOTE_ALL: _UNDER_WAY,
    RolloutCommand.ABORT: _UNDER_WAY,
    RolloutCommand.RETRY: (RolloutPhase.ROLLED_BACK,),
}
"""Phases in which a word has an effect."""


async def act(session: ClusterSession, name: str, word: str, timeout: float) -> str:
    """Say `word` about the canary of `name`, and wait at most `timeout` seconds for the operator.

    Returns a sentence on what the canary does then. Raises ClusterError where the word has no
    effect, or the operator does not follow.
    """
    resource = await session.deployment(name)
    command, before = RolloutCommand(word), rollout_of(resource)
    check(name_of(resource), before, command)
    await session.annotate(resource, {COMMAND: f"{command.value} {before['id']}"})
    said = f"{name_of(resource)}: said {command.value} {before['id']}"
    if not timeout:
        return said
    try:
        async with asyncio.timeout(timeout):
            return f"{said}; {await _outcome(session, name, before)}"
    except TimeoutError:
        raise ClusterError(
            f"{said}, and the operator has not followed in {timeout:g} s; see kubectl kvasir status"
            f" {name_of(resource)}"
        ) from None


def rollout_of(resource: Object) -> Mapping[str, Any]:
    """Return the state of the canary; empty where there has been none."""
    return (resource.get("status") or {}).get("rollout") or {}


def check(name: str, rollout: Mapping[str, Any], command: RolloutCommand) -> None:
    """Raise ClusterError where `command` has no effect on the canary as it is."""
    if not rollout:
        raise ClusterError(
            f"{name} has no canary; spec.rollout.canary makes one of the next change"
            " (docs/canary.md)"
        )
    if rollout["phase"] not in _PHASES[command]:
        wanted = " or ".join(phase.value for phase in _PHASES[command])
        verdict = f" ({rollout['reason']})" if rollout.get("reason") else ""
        raise ClusterError(
            f"{command.value} has no effect on {name}: its canary is {rollout['phase']}{verdict},"
            f" not {wanted}"
        )


async def _outcome(session: ClusterSession, name: str, before: Mapping[str, Any]) -> str:
    """Wait until the operator has another step or phase than `before`; say which."""
    while True:
        now = rollout_of(await session.deployment(name))
        # A pause may begin or end meanwhile without the word
        if now.get("id") != before["id"] or now.get("phase") not in (*_UNDER_WAY, before["phase"]):
            return describe(now)
        await asyncio.sleep(_POLL_SECONDS)


def describe(rollout: Mapping[str, Any]) -> str:
    """Say where the canary is."""
    if not rollout:
        return "there is no canary any more"
    step = f"step {rollout.get('step')} of {rollout.get('steps')}"
    verdict = f": {rollout['reason']}" if rollout.get("reason") else ""
    return f"the canary is {rollout['phase']} at {step}{verdict}"
