"""Next state of a canary, from its status and what is observed: a state machine without a clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import ceil

from kvasir.kube.objects import parse_time
from kvasir.resource.deployment_status import Reason
from kvasir.resource.rollout.rollout_spec import Canary, CanaryStep
from kvasir.resource.rollout.rollout_status import (
    RolloutCommand,
    RolloutPhase,
    RolloutStatus,
    SplitStatus,
)
from kvasir.wire.canary_samples import CanarySamples
from kvasir_operator.objects import format_time
from kvasir_operator.plan.canary.canary_analysis import CanaryVerdict, Outcome, figures, judge

RUNNING = (RolloutPhase.STARTING, RolloutPhase.ANALYSING, RolloutPhase.PAUSED)
"""Phases in which the canary runs beside a stable revision that stays."""


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """Everything that the next state depends on beside the spec and the last one."""

    now: datetime
    revision: str
    """Revision that the spec asks for."""
    stable: str
    """Revision of the Deployment that serves."""
    replicas: int
    """Replicas that the spec asks for."""
    ready: int = 0
    """Pods of the canary that get requests as soon as a split gives them some."""
    problem: str = ""
    """Sentence on why its pods do not start; "" = they may."""
    rolled_out: bool = False
    """Every replica of the Deployment has its revision and serves."""
    samples: CanarySamples | None = None
    """Samples of the last split; None = no router has any."""
    command: tuple[RolloutCommand, str] | None = None
    """Last word of a person, and the id that it is about."""
    paused: bool = False
    """The canary stays at its step."""


def replicas_of(weight: int, replicas: int) -> int:
    """Return the pods for a share of the requests, in percent: as many as the stable revision has
    for its own, rounded up, and one at least while there is any."""
    return max(1, ceil(replicas * weight / 100)) if replicas else 0


def advance(wanted: Canary, before: RolloutStatus | None, facts: CanaryFacts) -> RolloutStatus:
    """Return the next state of a canary whose revision is not that of the stable Deployment."""
    if before is None or before.canary_revision != facts.revision:
        return _begin(wanted, facts, attempt=1)
    # The steps may have been edited meanwhile
    last = len(wanted.steps)
    state = before.model_copy(update={"steps": last, "step": min(before.step, last)})
    verb = _command(state, facts)
    if state.phase == RolloutPhase.ROLLED_BACK:
        if verb is RolloutCommand.RETRY:
            return _begin(wanted, facts, attempt=state.attempt + 1)
        return state
    if state.phase == RolloutPhase.PROMOTING:
        return state
    if state.phase not in RUNNING:  # promoted, and then the Deployment went back
        return _begin(wanted, facts, attempt=state.attempt + 1)
    if verb is RolloutCommand.ABORT:
        return _rolled_back(state, Reason.ABORTED, "Aborted by the annotation.")
    if verb is RolloutCommand.PROMOTE_ALL:
        return _promote(state, Reason.PROMOTED_BY_HAND, "Promoted by the annotation.")
    if facts.problem:
        return _rolled_back(state, Reason.START_FAILED, facts.problem)
    if state.split is None:
        return _start(state, wanted, facts, verb)
    samples = _samples(state, facts)
    verdict = judge(samples, wanted.analysis)
    state = _told(state, wanted, samples, verdict)
    if verdict.outcome is Outcome.FAILED:
        return _rolled_back(state, verdict.reason, verdict.message)
    if state.phase == RolloutPhase.STARTING:
        return _start(state, wanted, facts, verb)
    return _analyse(state, wanted, facts, verdict, verb)


def finish(before: RolloutStatus | None, facts: CanaryFacts) -> RolloutStatus | None:
    """Return the state where the stable Deployment has the revision that the spec asks for."""
    if before is None or before.canary_revision != facts.revision:
        return None
    if before.phase == RolloutPhase.PROMOTING and facts.rolled_out:
        update = {
            "phase": RolloutPhase.PROMOTED.value,
            "split": None,
            "replicas": 0,
            "stable_revision": facts.revision,
        }
        return before.model_copy(update=update)
    return before if before.phase in (RolloutPhase.PROMOTING, RolloutPhase.PROMOTED) else None


def _begin(wanted: Canary, facts: CanaryFacts, attempt: int) -> RolloutStatus:
    state = RolloutStatus(
        phase=RolloutPhase.STARTING.value,
        id="",
        stable_revision=facts.stable,
        canary_revision=facts.revision,
        attempt=attempt,
        steps=len(wanted.steps),
        started_at=format_time(facts.now),
    )
    return _enter(state, wanted, facts, 1)


def _enter(state: RolloutStatus, wanted: Canary, facts: CanaryFacts, step: int) -> RolloutStatus:
    """Begin a step with the start of the pods it needs; until they serve, the last split holds."""
    update = {
        "phase": RolloutPhase.STARTING.value,
        "step": step,
        "id": f"{state.canary_revision}.{state.attempt}.{step}",
        "replicas": replicas_of(wanted.steps[step - 1].weight, facts.replicas),
        "step_started_at": None,
        "reason": Reason.CANARY_STARTING.value,
        "message": "",
    }
    return state.model_copy(update=update)


def _start(
    state: RolloutStatus, wanted: Canary, facts: CanaryFacts, verb: RolloutCommand | None
) -> RolloutStatus:
    if verb is RolloutCommand.PROMOTE:
        return _next(state, wanted, facts, by_hand=True)
    step = wanted.steps[state.step - 1]
    needed = replicas_of(step.weight, facts.replicas)
    state = state.model_copy(update={"replicas": needed})
    if not needed or facts.ready < needed:
        message = f"{facts.ready} of {needed} pods of the canary serve."
        return state.model_copy(update={"message": message})
    split = SplitStatus(
        id=state.id,
        revision=state.canary_revision,
        weight=step.weight,
        matches=step.matches,
        min_samples=wanted.analysis.min_samples,
    )
    update = {
        "phase": RolloutPhase.ANALYSING.value,
        "step_started_at": format_time(facts.now),
        "weight": step.weight,
        "split": split,
        "samples": None,
        "reason": Reason.TOO_FEW_SAMPLES.value,
        "message": "The step has just begun.",
    }
    return state.model_copy(update=update)


def _analyse(
    state: RolloutStatus,
    wanted: Canary,
    facts: CanaryFacts,
    verdict: CanaryVerdict,
    verb: RolloutCommand | None,
) -> RolloutStatus:
    step, analysis = wanted.steps[state.step - 1], wanted.analysis
    state = _followed(state, step, facts)
    if verb is RolloutCommand.PROMOTE:
        return _next(state, wanted, facts, by_hand=True)
    if facts.paused:
        # A pause ends with the step's time from its beginning
        update = {
            "phase": RolloutPhase.PAUSED.value,
            "step_started_at": format_time(facts.now),
        }
        return state.model_copy(update=update)
    elapsed = (facts.now - parse_time(state.step_started_at or "")).total_seconds()
    pause = step.pause
    if pause is not None and pause.seconds is None:
        return state.model_copy(update={"phase": RolloutPhase.PAUSED.value})
    least = max(analysis.min_seconds, (pause.seconds or 0) if pause is not None else 0)
    if elapsed < least:
        paused = verdict.outcome is Outcome.PASSED and elapsed >= analysis.min_seconds
        phase = RolloutPhase.PAUSED if paused else RolloutPhase.ANALYSING
        return state.model_copy(update={"phase": phase.value})
    if verdict.outcome is Outcome.PASSED:
        return _next(state, wanted, facts, by_hand=False)
    most = max(analysis.max_seconds, least)
    if elapsed >= most:
        message = (
            f"Step {state.step} has not passed in {most} s. {verdict.message} Wait longer with"
            " analysis.maxSeconds, or ask for less."
        )
        return _rolled_back(state, Reason.STEP_TIMEOUT, message)
    return state.model_copy(update={"phase": RolloutPhase.ANALYSING.value})


def _followed(state: RolloutStatus, step: CanaryStep, facts: CanaryFacts) -> RolloutStatus:
    """Return the state with what the step is now, which may have been edited, and the pods that
    replicas ask for now."""
    split = state.split
    if split is not None and (split.weight, split.matches) != (step.weight, step.matches):
        split = split.model_copy(update={"weight": step.weight, "matches": step.matches})
    update = {
        "split": split,
        "weight": step.weight,
        "replicas": replicas_of(step.weight, facts.replicas),
    }
    return state.model_copy(update=update)


def _next(
    state: RolloutStatus, wanted: Canary, facts: CanaryFacts, *, by_hand: bool
) -> RolloutStatus:
    if state.step < len(wanted.steps):
        return _enter(state, wanted, facts, state.step + 1)
    if by_hand:
        return _promote(state, Reason.PROMOTED_BY_HAND, "Promoted by the annotation.")
    return _promote(state, Reason.NO_DIFFERENCE, "All steps have passed.")


def _promote(state: RolloutStatus, reason: Reason, message: str) -> RolloutStatus:
    split = SplitStatus(id=f"{state.id}.all", revision=state.canary_revision)
    update = {
        "phase": RolloutPhase.PROMOTING.value,
        "split": split,
        "weight": 100,
        "reason": reason.value,
        "message": message,
    }
    return state.model_copy(update=update)


def _rolled_back(state: RolloutStatus, reason: Reason, message: str) -> RolloutStatus:
    update = {
        "phase": RolloutPhase.ROLLED_BACK.value,
        "split": None,
        "weight": 0,
        "replicas": 0,
        "reason": reason.value,
        "message": message[:1024],
    }
    return state.model_copy(update=update)


def _samples(state: RolloutStatus, facts: CanaryFacts) -> CanarySamples:
    split = state.split.id if state.split is not None else ""
    found = facts.samples
    return found if found is not None and found.split == split else CanarySamples(split)


def _told(
    state: RolloutStatus, wanted: Canary, samples: CanarySamples, verdict: CanaryVerdict
) -> RolloutStatus:
    update = {
        "samples": figures(samples, wanted.analysis),
        "reason": verdict.reason.value,
        "message": verdict.message,
    }
    return state.model_copy(update=update)


def _command(state: RolloutStatus, facts: CanaryFacts) -> RolloutCommand | None:
    if facts.command is None or facts.command[1] != state.id:
        return None
    return facts.command[0]
