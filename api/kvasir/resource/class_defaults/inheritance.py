"""Complete an LLMDeployment's spec by the values that it leaves to its class.

Pure, over the spec as it was written or as an API server has stored it: a value that the definition
defaults to (0 GPUs, parallelism.tensor 1) counts as none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvasir.resource.class_defaults.defaults_spec import ClassSettings, Defaults, Profile
from kvasir.resource.gpus.resources_spec import AMOUNTS, Resources, gpu_names

_WITHOUT_PROFILE = ("cpu", "sim")
"""Devices whose LLMDeployments do not get the default profile."""


class InheritedValue(NamedTuple):
    """One value that an LLMDeployment has from its class."""

    field: str
    """Path in the LLMDeployment or, where it has no such field, in the class."""
    value: str
    source: str
    """defaults, or `profile NAME`."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """An LLMDeployment's spec, completed by its class."""

    spec: Mapping[str, Any]
    """The completed spec, without `profile`."""
    class_name: str = ""
    profile: str = ""
    """Name of the profile; "" = none."""
    values: tuple[InheritedValue, ...] = ()
    """Values that are the class', in the order in which they were taken."""
    defaults: Defaults = field(default_factory=Defaults)
    """Values that no field of an LLMDeployment stands for."""
    problem: str = ""
    """Sentence on a profile that does not exist; "" = it does."""

    @property
    def words(self) -> str:
        """The class and profile, for people."""
        profile = f" (profile {self.profile})" if self.profile else ""
        return f"LLMDeploymentClass {self.class_name}{profile}"


def inherit(spec: Mapping[str, Any], settings: ClassSettings, class_name: str) -> Inheritance:
    """Complete a spec by its class. A model that servers of others serve has nothing of it."""
    own = {name: value for name, value in spec.items() if name != "profile"}
    if spec.get("external"):
        return Inheritance(own, class_name)
    wanted = spec.get("profile") or _default_profile(spec, settings.defaults)
    profile = settings.profile(wanted) if wanted else None
    filling = _Filling(copy.deepcopy(own))
    if profile is not None:
        filling.take_profile(profile)
    defaults = settings.defaults
    image = getattr(defaults.images, filling.engine_type, None)
    filling.fill("engine.image", image, "defaults")
    filling.values += (InheritedValue(*it, "defaults") for it in _site_values(defaults))
    missing = wanted and profile is None
    return Inheritance(
        filling.spec,
        class_name,
        wanted or "",
        tuple(filling.values),
        defaults,
        _no_such_profile(str(wanted), settings, class_name) if missing else "",
    )


def _default_profile(spec: Mapping[str, Any], defaults: Defaults) -> str | None:
    device = _part(spec, "engine.config").get("device", "auto")
    return None if device in _WITHOUT_PROFILE else defaults.profile


def _no_such_profile(wanted: str, settings: ClassSettings, class_name: str) -> str:
    names = ", ".join(each.name for each in settings.profiles)
    remedy = f"set spec.profile to one of {names}" if names else "remove spec.profile"
    told = f"LLMDeploymentClass {class_name} has no profile {wanted}"
    return f"{told}; {remedy}, or add it to the class."


def _site_values(defaults: Defaults) -> Iterator[tuple[str, str]]:
    """Yield the fields of `defaults` that an LLMDeployment has no field for, with their values."""
    if defaults.image_pull_secrets:
        names = ", ".join(each.name for each in defaults.image_pull_secrets)
        yield "defaults.imagePullSecrets", names
    for each in defaults.image_mirrors:
        yield f"defaults.imageMirrors[{each.source}]", each.mirror
    if defaults.hub_endpoint is not None:
        yield "defaults.hubEndpoint", defaults.hub_endpoint
    if defaults.ca_bundle is not None:
        bundle = defaults.ca_bundle
        yield "defaults.caBundle", f"{bundle.kind} {bundle.ref.name}, key {bundle.ref.key}"
    if defaults.proxy is not None:
        given = defaults.proxy.model_dump(by_alias=True, exclude_defaults=True)
        for name, value in given.items():
            yield f"defaults.proxy.{name}", value if isinstance(value, str) else ",".join(value)


def _part(spec: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    part: Any = spec
    for step in path.split("."):
        part = part.get(step) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


class _Filling:
    """A spec that gets values where it has none."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.values: list[InheritedValue] = []

    @property
    def engine_type(self) -> str:
        return str(_part(self.spec, "engine").get("type") or "kvasir")

    def take_profile(self, profile: Profile) -> None:
        """Fill in what a profile has."""
        source = f"profile {profile.name}"
        self.fill("engine.image", getattr(profile.images, self.engine_type, None), source)
        self._take_resources(profile, source)
        self._take_place(profile, source)

    def fill(self, path: str, value: Any, source: str) -> None:
        """Set a field that is not set; None = there is no value for it."""
        *_, name = path.split(".")
        part = self._open(path)
        if value is not None and part.get(name) is None:
            part[name] = value
            self._note(path, value, source)

    def _take_resources(self, profile: Profile, source: str) -> None:
        own = _part(self.spec, "resources.limits"), _part(self.spec, "resources.gpuClaim")
        if profile.resources.gpus and not own[1] and not any(gpu_names(own[0])):
            self._take_gpus(profile.resources, source)
        given = profile.resources.model_dump(by_alias=True, exclude_none=True)
        for name in AMOUNTS:
            here = [_part(self.spec, f"resources.{kind}") for kind in ("limits", "requests")]
            if all(part.get(name) is None for part in here):
                for kind in ("limits", "requests"):
                    self._set(f"resources.{kind}", name, given[kind].get(name), source)

    def _take_gpus(self, resources: Resources, source: str) -> None:
        parallelism = self._open("parallelism.tensor")
        tensor, claim = parallelism.get("tensor", 1), resources.gpu_claim
        count = tensor if isinstance(tensor, int) and tensor > 1 else resources.gpus
        if claim is None:
            self._set("resources.limits", resources.limits.gpu_resource, count, source)
        else:
            given = claim.model_dump(by_alias=True, exclude_none=True)
            self._open("resources.gpuClaim")["gpuClaim"] = {**given, "count": count}
            self._note("resources.gpuClaim", f"{count} of {resources.gpu_words}", source)
        if tensor == 1 and count > 1:
            parallelism["tensor"] = count
            self._note("parallelism.tensor", count, source)

    def _take_place(self, profile: Profile, source: str) -> None:
        template = self._open("podTemplate.x")
        given = profile.model_dump(by_alias=True, exclude_none=True)
        selector = template.get("nodeSelector") or {}
        for name, value in profile.node_selector.items():
            if name not in selector:
                template["nodeSelector"] = selector = {**selector, name: value}
                self._note(f"podTemplate.nodeSelector[{name}]", value, source)
        here = template.get("tolerations") or []
        more = [it for it in given["tolerations"] if it not in here]
        if more:
            template["tolerations"] = [*here, *more]
            keys = ", ".join(str(it.get("key", "every taint")) for it in more)
            self._note("podTemplate.tolerations", keys, source)
        for name in ("affinity", "priorityClassName", "runtimeClassName", "schedulerName"):
            self.fill(f"podTemplate.{name}", given.get(name), source)

    def _set(self, path: str, name: str, value: Any, source: str) -> None:
        if value is not None:
            self._open(f"{path}.x")[name] = value
            self._note(f"{path}[{name}]", value, source)

    def _open(self, path: str) -> dict[str, Any]:
        """Return the part that has the last field of `path`, made where it is missing."""
        part = self.spec
        for step in path.split(".")[:-1]:
            if part.get(step) is None:
                part[step] = {}
            part = part[step]
        return part

    def _note(self, path: str, value: Any, source: str) -> None:
        words = "set" if isinstance(value, Mapping) else str(value)
        self.values.append(InheritedValue(f"spec.{path}", words, source))
