"""Rules on what stands beside `spec.external`: nothing is said of engines that are not made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvasir.resource.engine_spec import Engine, EngineConfig
from kvasir.resource.gpus.resources_spec import ResourceRequests
from kvasir.resource.pod_template import PodTemplate
from kvasir.resource.strict_model import StrictModel, rule

_NOT_MADE = "no engine is made for external; remove {}"


class _Part(NamedTuple):
    name: str
    plain: str
    """CEL, over the spec: nothing is said there but what the definition defaults to."""
    is_plain: Callable[[Any], bool]
    """The same over the model of the spec."""


def _plain(path: str, model: type[StrictModel], but: tuple[str, ...] = ()) -> str:
    """Return CEL that holds where each field of a part is as if it were not written."""
    return " && ".join(
        _as_default(f"{path}.{field.alias}", field.get_default(call_default_factory=True))
        for name, field in model.model_fields.items()
        if name not in but
    )


def _as_default(field: str, default: object) -> str:
    if default is None:
        return f"!has({field})"
    if isinstance(default, (list, dict)):
        return f"(!has({field}) || size({field}) == 0)"
    return f"{field} == '{default}'"


_LIMITS = "self.resources.limits"
_PARTS = (
    _Part(
        "engine",
        f"{_plain('self.engine', Engine, ('config',))}"
        f" && {_plain('self.engine.config', EngineConfig)}",
        lambda spec: spec.engine == Engine(),
    ),
    _Part(
        "resources",
        f"!has(self.resources.gpuClaim) && (!has({_LIMITS}) || {_LIMITS}.all(it,"
        f" it.contains('/') && string({_LIMITS}[it]) == '0')) && !has(self.resources.requests.cpu)"
        " && !has(self.resources.requests.memory)"
        " && !has(self.resources.requests.ephemeral__dash__storage)",
        lambda spec: (
            not (
                spec.resources.gpus
                or spec.resources.limits.amounts
                or spec.resources.requests != ResourceRequests()
            )
        ),
    ),
    _Part(
        "parallelism",
        "string(self.parallelism.tensor) == '1'",
        lambda spec: spec.parallelism.tensor == 1,
    ),
    _Part(
        "podTemplate",
        _plain("self.podTemplate", PodTemplate),
        lambda spec: spec.pod_template == PodTemplate(),
    ),
    _Part("profile", "!has(self.profile)", lambda spec: spec.profile is None),
)

EXTERNAL_RULES = tuple(
    rule(f"!has(self.external) || ({each.plain})", _NOT_MADE.format(each.name)) for each in _PARTS
)
"""CEL rules of the spec."""


def external_problems(spec: Any) -> Iterator[str]:
    """Yield a sentence for each part beside `spec.external` that would have no effect."""
    if spec.external is None:
        return
    for each in _PARTS:
        if not each.is_plain(spec):
            yield _NOT_MADE.format(each.name)
