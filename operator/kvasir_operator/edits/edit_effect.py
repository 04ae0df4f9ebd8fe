"""Effect of an edit: the plan of the resource as it is beside that of the edited one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvasir.kube.objects import Object, condition, holds, label, name_of, namespace_of
from kvasir.resource import LLMDeployment, labels
from kvasir.resource.deployment_status import ConditionType
from kvasir.resource.rollout.rollout_status import RolloutPhase
from kvasir_operator.plan import Plan, plan
from kvasir_operator.plan.canary.canary_workload import canary_name, rollout_of
from kvasir_operator.plan.engine.pod_template import REVISION, pod_template
from kvasir_operator.plan.gpu_fit import fit_gpus
from kvasir_operator.plan.model_download.cache_step import cache_model
from kvasir_operator.plan.observed import Observed, parse_resource
from kvasir_operator.plan.step import PlanInputs
from kvasir_operator.plan.validation import accept
from kvasir_operator.settings import OperatorSettings

_MAX_SHOWN = 100
_MAX_CHANGES = 40


@dataclass(frozen=True, slots=True)
class EditEffect:
    """Effect of applying an edited LLMDeployment."""

    namespace: str
    name: str
    is_new: bool
    """True if there is no such LLMDeployment yet."""
    refused: str | None
    """Sentence on why the operator would not carry it out."""
    restarts: int
    """Engine pods that are replaced."""
    way: str
    """Clause on how they are; "" = none is."""
    replicas: tuple[int, int]
    """Engines before and after."""
    pod_changes: tuple[str, ...]
    """Changes of each pod, a line a field."""
    objects: tuple[str, ...]
    """Other objects that are made, changed or deleted, with the verb."""

    @property
    def title(self) -> str:
        """The effect on pods in one sentence."""
        place = f"{self.name} in namespace {self.namespace}"
        before, after = self.replicas
        if self.refused is not None:
            return f"{place}: not carried out: {self.refused}"
        if self.is_new:
            return f"{place} is new: {_pods(after)} start"
        told = f"{_pods(self.restarts)} restart{self.way}" if self.restarts else "no pod restarts"
        if after > before:
            told += f", {_pods(after - before)} more start"
        elif after < before:
            told += f", {_pods(before - after)} stop"
        return f"{place}: {told}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "summary": self.title}


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def effect_of(before: Observed | None, after: Observed, settings: OperatorSettings) -> EditEffect:
    """Return the effect of an edit: `before` and `after` differ in the resource alone, and there is
    no `before` where the LLMDeployment is new."""
    resource = after.resource
    parsed = parse_resource(resource)
    namespace, name = namespace_of(resource), name_of(resource)
    is_new = before is None
    if isinstance(parsed, str):
        return EditEffect(namespace, name, is_new, parsed, 0, "", (0, 0), (), ())
    wanted = plan(parsed, after, settings)
    refused = _refusal(wanted)
    replicas = parsed.spec.replicas
    if before is None:
        objects = tuple(_objects(None, wanted, after))
        return EditEffect(namespace, name, True, refused, 0, "", (0, replicas), (), objects)
    old = parse_resource(before.resource)
    if isinstance(old, str) or old.spec.external is not None or parsed.spec.external is not None:
        same = _planned(before, settings) if not isinstance(old, str) else None
        objects = tuple(_objects(same, wanted, after))
        return EditEffect(namespace, name, False, refused, 0, "", (0, 0), (), objects)
    templates = [template_of(*each, settings) for each in ((old, before), (parsed, after))]
    first, second = (label(each, REVISION) for each in templates)
    changes = tuple(_changes(*templates)) if first != second else ()
    pods = _stable_pods(before) if changes and refused is None else ()
    return EditEffect(
        namespace=namespace,
        name=name,
        is_new=False,
        refused=refused,
        restarts=len(pods),
        way=_way(parsed, after, wanted) if pods else "",
        replicas=(old.spec.replicas, replicas),
        pod_changes=changes,
        objects=tuple(_objects(_planned(before, settings), wanted, after)),
    )


def _planned(observed: Observed, settings: OperatorSettings) -> Plan:
    return plan(parse_resource(observed.resource), observed, settings)


def template_of(
    deployment: LLMDeployment, observed: Observed, settings: OperatorSettings
) -> Object:
    """Return the template of the engines' pods, as the plan's steps come to it."""
    inputs = PlanInputs(deployment, observed, settings)
    cached = cache_model(inputs, accept(inputs))
    return pod_template(inputs, fit_gpus(inputs, cached.download).tensor)


def _refusal(wanted: Plan) -> str | None:
    """Return why the operator would leave everything as it is."""
    for kind in (ConditionType.ACCEPTED, ConditionType.FITS):
        found = condition({"status": wanted.status}, kind)
        if found.get("status") == "False":
            return f"{found.get('reason')}: {found.get('message')}"
        if found.get("reason") == "Paused":
            return str(found.get("message"))
    return None


def _stable_pods(observed: Observed) -> tuple[Object, ...]:
    return tuple(pod for pod in observed.pods if not label(pod, labels.TRACK))


def _way(deployment: LLMDeployment, observed: Observed, wanted: Plan) -> str:
    """Say how the pods are replaced."""
    made = {name_of(it): it for it in wanted.manifests if it["kind"] == "Deployment"}
    steps = deployment.spec.rollout.canary.steps if deployment.spec.rollout.canary else ()
    if steps and canary_name(deployment.name) in made:
        count = made[canary_name(deployment.name)]["spec"]["replicas"]
        return (
            f" once its canary is promoted: {_pods(count)} more with {steps[0].weight} % of the"
            f" requests first, {len(steps)} steps in all"
        )
    rolling = deployment.spec.rollout_strategy
    how = f" (maxSurge {rolling.max_surge}, maxUnavailable {rolling.max_unavailable})"
    if deployment.name not in made:
        how += " when the model is downloaded"
    if not any(holds(pod, "Ready") for pod in _stable_pods(observed)):
        how += "; none serves now"
    state = rollout_of(observed.status)
    if state is not None and state.phase != RolloutPhase.PROMOTED:
        # What the spec says now is the canary's revision, which these pods do not run
        how += f"; compared with the canary that is {state.phase}, not with the stable revision"
    return how


def _objects(before: Plan | None, wanted: Plan, observed: Observed) -> Iterator[str]:
    """Yield the objects that one plan has and the other has not, or has otherwise. A Deployment
    that is there already is told by its pods."""
    live = observed.deployment
    there = {f"Deployment/{name_of(live)}"} if live is not None else set()
    old = {_key(it): it for it in before.manifests} if before is not None else {}
    new = {_key(it): it for it in wanted.manifests}
    for key, it in new.items():
        if key not in old and key not in there:
            yield f"make {key}"
        elif key not in old:
            continue
        elif it != old[key] and it["kind"] != "Deployment":
            yield f"change {key}"
    kept = {_key(it) for it in before.deletions} if before is not None else set()
    for it in wanted.deletions:
        if _key(it) not in kept:
            yield f"delete {_key(it)}"


def _key(it: Object) -> str:
    return f"{it['kind']}/{name_of(it)}"


def _changes(before: Object, after: Object) -> Iterator[str]:
    """Yield what differs in two templates, a line a field; of secrets nothing."""
    from kvasir.cli.kubectl.bundle.redaction import redact_object

    old, new = (dict(_leaves(redact_object(each), "")) for each in (before, after))
    paths = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    told = [_change(path, old.get(path), new.get(path)) for path in paths if REVISION not in path]
    # A value that is not shown may differ all the same
    yield from told[:_MAX_CHANGES] or ("a value that is not shown here",)
    if len(told) > _MAX_CHANGES:
        yield f"and {len(told) - _MAX_CHANGES} more"


def _change(path: str, old: Any, new: Any) -> str:
    if isinstance(old, list) and isinstance(new, list):
        gone = [each for each in old if each not in new]
        come = [each for each in new if each not in old]
        if gone or come:
            signs = [f"- {_shown(it)}" for it in gone] + [f"+ {_shown(it)}" for it in come]
            return f"{path}: {', '.join(signs)}"
    if old is None:
        return f"{path}: + {_shown(new)}"
    if new is None:
        return f"{path}: - {_shown(old)}"
    return f"{path}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a template by their paths; items that have names by them."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list) and value and all(_name(each) for each in value):
        for each in value:
            yield from _leaves(each, f"{path}[{_name(each)}]")
    else:
        yield path, value


def _name(item: Any) -> str:
    return str(item.get("name") or item.get("mountPath") or "") if isinstance(item, Mapping) else ""
