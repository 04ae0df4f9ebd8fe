"""Values that a user puts in the place of those in a model's config.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvasir.engine_values import QuantizationName
from kvasir.models.hf_config import ConfigError
from kvasir.models.quantization_config import put_quantization

_LENGTHENING = ("yarn", "linear")
"""Kinds of rope scaling by whose factor the model's context grows, as in vLLM."""
_MAX_FACTOR = 1e6
"""Far beyond every model's. Python reads Infinity and NaN in JSON as numbers, too."""
_JSON_FLAGS = ("--hf-overrides", "--rope-scaling")


@dataclass(frozen=True, slots=True)
class ConfigOverrides:
    """--hf-overrides, --rope-scaling, --rope-theta and --quantization."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Objects of the config are merged with those here, everything else is replaced."""
    rope_scaling: Mapping[str, Any] | None = None
    rope_theta: float | None = None
    quantization: QuantizationName = "auto"

    def apply(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config with them. Raises ConfigError."""
        made = put_quantization(_merged(config, self.fields), self.quantization)
        if self.rope_scaling is None and self.rope_theta is None:
            return made
        text = made.get("text_config")
        if not isinstance(text, dict):
            return self._with_rope(made)
        return {**made, "text_config": self._with_rope(text)}

    def _with_rope(self, text: dict[str, Any]) -> dict[str, Any]:
        rope = text.get("rope_parameters")
        if isinstance(rope, dict) and any(isinstance(each, dict) for each in rope.values()):
            raise ConfigError(
                "--rope-scaling and --rope-theta are for models with one rope; this one has a rope "
                "for each kind of layer: set 'rope_parameters' by --hf-overrides"
            )
        made, theta = dict(text), self.rope_theta
        scaling = None
        if self.rope_scaling is not None:
            scaling, made["max_position_embeddings"] = _scaling(text, self.rope_scaling)
        if isinstance(rope, dict):
            kept = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
            rope = rope if scaling is None else {**kept, **scaling}
            made["rope_parameters"] = rope if theta is None else {**rope, "rope_theta": theta}
            return made
        if scaling is not None:
            made["rope_scaling"] = scaling
        return made if theta is None else {**made, "rope_theta": theta}


def read_overrides(value: str | Mapping[str, Any], flag: str) -> dict[str, Any]:
    """A flag's JSON object. Raises ConfigError with the flag and the remedy."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{flag} takes a JSON object: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{flag} takes a JSON object, not {json.dumps(value)[:40]}")
    return dict(value)


def overrides_in(args: Sequence[str]) -> ConfigOverrides:
    """The overrides among an engine's arguments. Raises ConfigError."""
    given = dict(_flags(args))
    fields, scaling = (given.get(flag) for flag in _JSON_FLAGS)
    theta = given.get("--rope-theta")
    try:
        return ConfigOverrides(
            read_overrides(fields or {}, _JSON_FLAGS[0]),
            None if scaling is None else read_overrides(scaling, _JSON_FLAGS[1]),
            None if theta is None else float(theta),
        )
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"--rope-theta takes a number, not {theta!r}") from None


def _flags(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in (*_JSON_FLAGS, "--rope-theta"):
            yield name, value if equals else args[at + 1] if at + 1 < len(args) else ""


def _merged(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(config)
    for name, value in overrides.items():
        before = made.get(name)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        made[name] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return made


def _scaling(text: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """The scaling, and the context that its factor makes of the model's own."""
    kind, factor = asked.get("rope_type", asked.get("type")), asked.get("factor")
    if not isinstance(kind, str):
        raise ConfigError("--rope-scaling must have 'rope_type', as yarn, linear or llama3")
    context = text.get("max_position_embeddings")
    own = asked.get("original_max_position_embeddings", context)
    if kind not in _LENGTHENING or not isinstance(own, int):
        return dict(asked), context
    if (
        isinstance(factor, bool)
        or not isinstance(factor, int | float)
        or not 1 <= factor <= _MAX_FACTOR
    ):
        shown = f"{factor}"[:40]
        raise ConfigError(f"--rope-scaling: 'factor' must be a number from 1 to 1e6, not {shown}")
    original = {"original_max_position_embeddings": own} if kind == "yarn" else {}
    return {**asked, **original}, int(own * factor)
