"""Rules between `spec.adapters` and the rest of a spec, each for API servers and for files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvasir.models.cache.layout import claim_and_path
from kvasir.resource.cache_spec import Cache
from kvasir.resource.strict_model import rule


class _LoraRule(NamedTuple):
    expression: str
    """CEL, over the spec."""
    message: str
    holds: Callable[[Any], bool]
    """The same over the model of a spec that has adapters."""


_NONE = "!has(self.adapters)"
_IS_DOWNLOADED = (
    "(self.model.uri.matches('^(hf|s3|oci|https)://') || !self.model.uri.contains('://'))"
)
_CLAIM = (
    "(self.model.uri.startsWith('pvc://') ? self.model.uri.substring(6).split('/')[0]"
    " : has(self.cache) && has(self.cache.pvc) && has(self.cache.pvc.claimName)"
    " ? self.cache.pvc.claimName : '')"
)

_LORA_RULES = (
    _LoraRule(
        f"{_NONE} || !has(self.external)",
        "adapters are loaded into engines, and none is made for external; remove them",
        lambda spec: spec.external is None,
    ),
    _LoraRule(
        f"{_NONE} || !self.adapters.exists(it, (has(self.model.name) && it.name == self.model.name)"
        " || (has(self.model.aliases) && it.name in self.model.aliases))",
        "an adapter has the name of the model or of an alias; give it another one",
        lambda spec: (
            not {each.name for each in spec.adapters} & {spec.model.name, *spec.model.aliases}
        ),
    ),
    _LoraRule(
        f"{_NONE} || {_IS_DOWNLOADED}"
        " || self.adapters.all(it, it.uri.startsWith('pvc://') || it.uri.startsWith('file://'))",
        "an adapter is downloaded into the cache of its model, which this model has none of; use"
        " pvc://CLAIM/DIRECTORY on the model's claim, or file:// inside engine.image",
        lambda spec: (
            (spec.external is None and spec.model.downloaded)
            or not any(each.downloaded for each in spec.adapters)
        ),
    ),
    _LoraRule(
        f"{_NONE} || self.adapters.all(it, !it.uri.startsWith('pvc://')"
        f" || it.uri.substring(6).split('/')[0] == {_CLAIM})",
        "an adapter with pvc:// lies on the volume that engines mount: the claim of model.uri, or"
        " cache.pvc.claimName; name that claim",
        lambda spec: {_claim_of(each.parsed_uri) for each in spec.adapters} <= {None, _claim(spec)},
    ),
)

LORA_RULES = (
    *(rule(each.expression, each.message) for each in _LORA_RULES),
    rule(
        f"{_NONE} || has(self.engine.image)"
        " || !self.adapters.exists(it, it.uri.startsWith('file://'))",
        "file:// of an adapter names a directory inside the engine's image; set engine.image, or"
        " use hf://, s3://, pvc://, oci:// or https://",
    ),
)
"""CEL rules of the spec."""


def lora_problems(spec: Any) -> Iterator[str]:
    """Yield a sentence for each rule that `spec` breaks."""
    if spec.adapters is None:
        return
    names = [each.name for each in spec.adapters]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield f"adapters has {', '.join(twice)} more than once; give each another name"
    yield from (each.message for each in _LORA_RULES if not each.holds(spec))


def _claim_of(uri: Any) -> str | None:
    return claim_and_path(uri)[0] if uri.scheme == "pvc" else None


def _claim(spec: Any) -> str | None:
    """Return the claim that the user names for the model."""
    if spec.external is not None:
        return None
    return _claim_of(spec.model.parsed_uri) or (spec.cache or Cache()).pvc.claim_name
