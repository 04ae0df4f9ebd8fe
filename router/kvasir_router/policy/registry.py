"""The routing policies that are installed, by name: entry points of the group GROUP.

An entry point leads to a class like those of this folder (`fleet/policy.py` says what is asked of
it). One that has options names their pydantic model in `options_type` and is made with an object of
it; any other one is made without arguments. `kvasir` registers its own policies in the same way.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from kvasir.validation import sentences
from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.fleet.policy import Policy
from kvasir_router.options.policy_options import PolicyOptions

GROUP = "kvasir.router_policies"

PolicyDefaults = Mapping[str, Mapping[str, Any]]
"""Options by policy, for every policy that is made."""


def policy_names() -> list[str]:
    """Return the names of all installed policies, in alphabetical order."""
    return list(_registered())


def check_policy(spec: PolicySpec, defaults: PolicyDefaults | None = None) -> None:
    """Raise ValueError if `make_policy` would."""
    _made_from(spec, defaults)


def make_policy(spec: PolicySpec, defaults: PolicyDefaults | None = None) -> Policy:
    """Return a new policy. Raises ValueError with the wrong name or option, and a remedy."""
    maker, options = _made_from(spec, defaults)
    policy: Policy = maker() if options is None else maker(options)
    policy.spec = spec
    return policy


def _made_from(spec: PolicySpec, defaults: PolicyDefaults | None) -> tuple[Any, Any]:
    """Return the policy's class and its options, None for one without."""
    maker = _load(spec.name)
    given = {**(defaults or {}).get(spec.name, {}), **spec.options}
    options_type: type[PolicyOptions] | None = getattr(maker, "options_type", None)
    if options_type is None:
        if given:
            raise ValueError(f"policy {spec.name} has no options; leave out {', '.join(given)}")
        return maker, None
    try:
        return maker, options_type.model_validate(given)
    except ValidationError as error:
        problem = next(sentences(error, options_type, whole="the options"))
        raise ValueError(f"policy {spec.name}: {problem}") from None


def _load(name: str) -> Any:
    found = _registered().get(name)
    if found is None:
        raise ValueError(
            f"policy {name!r} is not one of {', '.join(_registered())}; use one of these, or"
            f" install the package that registers it (entry point group {GROUP})"
        )
    try:
        return found.load()
    except (ImportError, AttributeError) as error:
        owner = found.dist.name if found.dist else "?"
        raise ValueError(
            f"policy {name!r} of package {owner} cannot be loaded: {error}; mend or reinstall it"
        ) from error


@cache
def _registered() -> dict[str, EntryPoint]:
    """Look the names up when the first one is needed, and import no policy. Of two packages that
    register a name the first one on Python's path has it."""
    found = {point.name: point for point in reversed([*entry_points(group=GROUP)])}
    return dict(sorted(found.items()))
