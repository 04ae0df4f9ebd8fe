"""Reasons why a model is not ready, from its condition down to the last line that a container said.

The texts are pure; `explain_model` reads what they need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvasir.cli.deployment_status.deployment_view import (
    ConditionView,
    DeploymentView,
    first_obstacle,
)
from kvasir.cli.deployment_status.pod_view import PodView
from kvasir.cli.deployment_status.read import read_deployments
from kvasir.cli.kubectl.cluster_session import PODS, ClusterError, ClusterSession
from kvasir.cli.kubectl.pod_logs import LogQuery, read_log
from kvasir.cli.kubectl.remedies import remedy_of
from kvasir.cli.printable import printable
from kvasir.kube import Kind
from kvasir.kube.objects import container_statuses, init_container_statuses
from kvasir.kube.pod_problems import describe_exit
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType

EVENTS = Kind("v1", "events")
_TAIL = LogQuery(tail=20, limit_bytes=64 * 1024)
_MAX_LOG = 128 * 1024
_SHOWN = 400
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ContainerStory:
    """A container that does not run as it should."""

    name: str
    sentence: str
    """State, last end and restarts."""
    ended: bool
    """True if what it said is in the log of the run before."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Reasons for which a model is not ready."""

    namespace: str
    name: str
    ready: bool
    sentences: tuple[str, ...]
    """From the condition to the container, a sentence each."""
    log_line: str | None
    """The last line that the container said; None = there is none, or it may not be read."""
    remedy: str | None

    @property
    def paragraph(self) -> str:
        """All of it."""
        said = list(self.sentences)
        if self.log_line is not None:
            said.append(f"The last line of its log: {self.log_line}")
        if self.remedy is not None:
            said.append(f"To do: {self.remedy}")
        return printable(" ".join(_ended(each) for each in said))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


async def explain_model(session: ClusterSession, name: str) -> Explanation:
    """Return why the LLMDeployment or model `name` is not ready. Raises ClusterError."""
    [view] = await read_deployments(session, name)
    obstacle = first_obstacle(view.conditions)
    if view.why is None or obstacle is None:
        return _without_obstacle(view)
    sentences = [_condition(view, obstacle)]
    if view.operator is not None:
        sentences.append(f"Beside that, {view.operator}")
    sentences += _workloads(view, obstacle)
    pod = troubled_pod(view, obstacle)
    line = None
    if pod is not None:
        sentences.append(_pod(pod, obstacle))
        live = await session.get(PODS, pod.namespace, pod.name)
        story = container_story(live) if live is not None else None
        warning, line = await asyncio.gather(
            _last_warning(session, pod), _last_line(session, pod, story)
        )
        sentences += [each for each in (story and story.sentence, warning) if each]
    remedy = remedy_of(obstacle.reason, view.name)
    return Explanation(view.namespace, view.name, False, tuple(sentences), line, remedy)


def _without_obstacle(view: DeploymentView) -> Explanation:
    """Return the explanation of a model that is ready, or of which nothing is known."""
    title = f"{view.name} in namespace {view.namespace} is"
    if view.why is not None:
        return Explanation(
            view.namespace, view.name, False, (f"{title} not ready: {view.why}",), None, None
        )
    ready = next((it for it in view.conditions if it.type == ConditionType.READY), None)
    said = f"{title} ready: {ready.reason}: {ready.message}" if ready else f"{title} ready"
    more = (f"But {view.operator}",) if view.operator is not None else ()
    return Explanation(view.namespace, view.name, True, (said, *more), None, None)


def _condition(view: DeploymentView, obstacle: ConditionView) -> str:
    old = " (of an older version of it; the operator has not seen the last change)"
    return (
        f"{view.name} in namespace {view.namespace} is not ready: its condition {obstacle.type} is"
        f" {obstacle.status}{old if view.stale else ''}, {obstacle.reason}: {obstacle.message}"
    )


def _workloads(view: DeploymentView, obstacle: ConditionView) -> Iterator[str]:
    for it in view.workloads:
        if it.role not in _roles(obstacle):
            continue
        if it.kind == "Job":
            said = f"Its download is job/{it.name}, which has not finished"
        else:
            said = f"Its deployment/{it.name} has {it.ready} of {it.desired} replicas ready"
        if it.ready < it.desired or it.why:
            yield f"{said}: {it.why}" if it.why else said


def _roles(obstacle: ConditionView) -> tuple[str, ...]:
    """Return the roles of the workloads that a condition is about."""
    is_download = obstacle.type == ConditionType.MODEL_CACHED
    return (labels.DOWNLOAD,) if is_download else (labels.ENGINE, labels.CANARY)


def troubled_pod(view: DeploymentView, obstacle: ConditionView) -> PodView | None:
    """Return the pod that is worst off among those that the condition is about: one that the
    condition names, then one that restarts, then one that waits."""
    roles = {it.name: it.role for it in view.workloads}
    wanted = _roles(obstacle)

    def is_meant(pod: PodView) -> bool:
        role = roles.get(pod.workload or "", pod.component)
        return obstacle.type == ConditionType.DEGRADED or role in wanted

    bad = [pod for pod in view.pods if pod.why and not pod.ready and pod.state != "Terminating"]
    found = [pod for pod in bad if is_meant(pod)] or bad
    named = [pod for pod in found if pod.name in obstacle.message]
    return max(named or found, key=lambda pod: (pod.restarts, pod.state != "Running"), default=None)


def _pod(pod: PodView, obstacle: ConditionView) -> str:
    place = f" on node {pod.node}" if pod.node else ""
    said = f"Its pod {pod.name}{place} is {pod.state}"
    is_told = pod.why is None or pod.why in obstacle.message
    return said if is_told else f"{said}: {_short(pod.why)}"


def container_story(pod: Object) -> ContainerStory | None:
    """Return the container of `pod` that waits, has failed or is restarted; None where none is."""
    statuses = (*init_container_statuses(pod), *container_statuses(pod))
    return next(filter(None, map(_story, statuses)), None)


def _story(status: Object) -> ContainerStory | None:
    name, restarts = str(status.get("name")), int(status.get("restartCount") or 0)
    state = status.get("state") or {}
    waiting, now = state.get("waiting"), state.get("terminated") or {}
    before = (status.get("lastState") or {}).get("terminated") or {}
    if now.get("exitCode"):
        said, ended = f"ended with {describe_exit(now)}", False
    elif waiting is not None:
        said, ended = f"waits ({waiting.get('reason') or 'no reason is told'})", bool(before)
    elif restarts and not status.get("ready"):
        said, ended = "runs, and is not ready", bool(before)
    elif not status.get("ready") and "running" in state:
        return ContainerStory(name, f"Its container {name} runs, and is not ready", False)
    else:
        return None
    if before and not now:
        said += f"; it ended with {describe_exit(before)}"
    if restarts:
        said += f", and was restarted {'once' if restarts == 1 else f'{restarts} times'}"
    return ContainerStory(name, f"Its container {name} {said}", ended)


async def _last_line(
    session: ClusterSession, pod: PodView, story: ContainerStory | None
) -> str | None:
    """Return the last line of a container's log, of the run that ended if there is one."""
    if story is None:
        return None
    runs = (True, False) if story.ended else (False,)
    for previous in runs:
        query = LogQuery(_TAIL.tail, limit_bytes=_TAIL.limit_bytes, previous=previous)
        try:
            text = await read_log(session, pod.namespace, pod.name, story.name, query, _MAX_LOG)
        except ClusterError:
            continue  # it has not begun, its node does not answer, or it may not be read
        if line := last_line(text.decode(errors="replace")):
            return line
    return None


def last_line(text: str) -> str | None:
    """Return the last line of `text` that says something, shortened; None where none does."""
    lines = [line.strip() for line in text.splitlines()]
    said = next((line for line in reversed(lines) if any(map(str.isalnum, line))), None)
    return _short(said) if said else None


async def _last_warning(session: ClusterSession, pod: PodView) -> str | None:
    """Return what the last warning about a pod says that has not started."""
    if pod.state not in ("ContainerCreating", "Pending", "PodInitializing"):
        return None
    fields = f"involvedObject.kind=Pod,involvedObject.name={pod.name},type=Warning"
    try:
        events = await session.find(EVENTS, pod.namespace, fields=fields)
    except ClusterError:
        return None
    return last_warning(events)


def last_warning(events: Sequence[Object]) -> str | None:
    """Return the newest of `events` as a sentence."""

    def at(event: Object) -> str:
        return str(event.get("lastTimestamp") or event.get("eventTime") or "")

    newest = max(events, key=at, default=None)
    if newest is None:
        return None
    return f"The last warning about it: {newest.get('reason')}: {_short(newest.get('message'))}"


def _short(text: Any) -> str:
    said = " ".join(str(text or "").split())
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]} ..."


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?", "...")) else f"{sentence}."
