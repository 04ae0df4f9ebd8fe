"""Step 4b: the LoRA adapters that engines shall hold, and which of them do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvasir.kube.objects import Object, holds, name_of
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir.resource.lora.lora_adapter import LoraAdapter
from kvasir.resource.lora.lora_status import MAX_REFUSAL
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.engine.engine_pods import EnginePods
from kvasir_operator.plan.lora.lora_downloads import LoraDownloads, plan_downloads
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.spec_facts import held_by_pod

PASSING = (
    Reason.LOADED,
    Reason.LOADING,
    Reason.WAITING,
    Reason.DOWNLOADING,
    Reason.DOWNLOAD_PENDING,
)
"""Reasons of AdaptersLoaded that are none of Degraded."""


class _State(NamedTuple):
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPlan(StepResult):
    """Contribution of the adapters."""

    wanted: Mapping[str, str] | None = None
    """Directories of those that engines shall hold now, by their names; None = engines take no
    adapters."""


def plan_adapters(inputs: PlanInputs, pods: EnginePods, *, waits: bool) -> LoraPlan:
    """Want the downloads and set AdaptersLoaded and status.adapters. No download begins while
    something else `waits`."""
    adapters = inputs.spec.adapters
    downloads = plan_downloads(inputs, waits)
    if adapters is None:
        return LoraPlan(deletions=downloads.deletions)
    ready = [pod for pod in (*pods.current, *pods.old) if holds(pod, "ContainersReady")]
    states = {each.name: _state(inputs, each, downloads, pods.up) for each in adapters}
    status = [
        {"name": name, "readyReplicas": sum(map(_Holds(name), ready)), **_told(state)}
        for name, state in states.items()
    ]
    return LoraPlan(
        manifests=downloads.manifests,
        deletions=downloads.deletions,
        conditions=tuple(_condition(inputs, states)),
        status={"adapters": status},
        requeue=downloads.requeue,
        wanted={
            each.name: each.directory
            for each in adapters
            if each.name not in inputs.observed.names_lost
            and str(each.parsed_uri) not in downloads.unfinished
        },
    )


class _Holds:
    """Test of a pod for an adapter."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, pod: Object) -> bool:
        held = held_by_pod(pod)
        return held is not None and self._name in held.held


def _told(state: _State) -> dict[str, str]:
    return {} if state.reason is Reason.LOADED else {"message": state.message}


def _state(
    inputs: PlanInputs, adapter: LoraAdapter, downloads: LoraDownloads, pods: list[Object]
) -> _State:
    """Return where one adapter is; LOADED where every engine that is up holds it."""
    holder = inputs.observed.names_lost.get(adapter.name)
    if holder is not None:
        message = f"Its name belongs to LLMDeployment {holder}; give it another one."
        return _State(Reason.NAME_CONFLICT, message)
    unfinished = downloads.unfinished.get(str(adapter.parsed_uri))
    if unfinished is not None:
        return _State(unfinished[0], unfinished[1][:MAX_REFUSAL])
    missing = [pod for pod in pods if not _is_held(pod, adapter)]
    for pod in missing:
        held = held_by_pod(pod)
        if held is not None and (why := held.refused.get(adapter.name)):
            return _State(Reason.ADAPTER_REFUSED, f"{name_of(pod)}: {why}"[: MAX_REFUSAL + 128])
    if missing or not pods:
        told = f"{len(pods) - len(missing)} of {len(pods)} engines hold it."
        return _State(Reason.LOADING, told if pods else "No engine is up.")
    return _State(Reason.LOADED, "")


def _is_held(pod: Object, adapter: LoraAdapter) -> bool:
    held = held_by_pod(pod)
    return held is not None and held.held.get(adapter.name) == adapter.directory


def _condition(inputs: PlanInputs, states: Mapping[str, _State]) -> Iterator[ConditionValue]:
    kind = ConditionType.ADAPTERS_LOADED
    if not states:
        return
    open_ = {name: each for name, each in states.items() if each.reason is not Reason.LOADED}
    if inputs.spec.replicas == 0 and all(each.reason is Reason.LOADING for each in open_.values()):
        yield ConditionValue(kind, True, Reason.SCALED_TO_ZERO, "spec.replicas is 0.")
        return
    bad = {name: each for name, each in open_.items() if each.reason not in PASSING}
    shown = bad or open_
    if not shown:
        message = f"{len(states)} adapters are held by every engine that is up."
        yield ConditionValue(kind, True, Reason.LOADED, message)
        return
    name, first = next(iter(shown.items()))
    more = f" {len(shown) - 1} more: see status.adapters." if len(shown) > 1 else ""
    yield ConditionValue(kind, False, first.reason, f"Adapter {name}: {first.message}{more}")
