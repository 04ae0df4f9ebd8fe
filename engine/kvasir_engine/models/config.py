"""A model's config.json as model code reads it: its shape, and any other field with a default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.models.hf_config import parse_shape
from kvasir.models.model_shape import ModelShape
from kvasir_engine.layers.rotary import RotaryConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The text part of a config.json. `max_model_len` is the longest sequence to be served."""

    shape: ModelShape
    fields: Mapping[str, Any]
    max_model_len: int

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` when it is absent or null."""
        value = self.fields.get(name)
        return default if value is None else value

    def field_or(self, name: str, default: Any) -> Any:
        """The field, null included, or `default` when it is absent."""
        return self.fields.get(name, default)

    def rotary(self, theta: float = 10_000.0, layer_type: str | None = None) -> RotaryConfig:
        """Rotary embedding of all layers, or of those of one `layer_type` where they differ.

        `theta` is the family's default base. Reads `rope_parameters` (transformers 5) or
        `rope_theta`, `rope_scaling` and `partial_rotary_factor` (before).
        """
        given = self.get("rope_parameters", {})
        nested = given.get(layer_type) if layer_type else None
        scaling: dict[str, Any] = dict(nested or given or self.get("rope_scaling", {}))
        for name in ("original_max_position_embeddings", "partial_rotary_factor"):
            if self.get(name) is not None:
                scaling[name] = self.get(name)
        rotated = float(scaling.get("partial_rotary_factor") or 1.0)
        return RotaryConfig(
            rotary_dim=int(self.shape.head_dim * rotated),
            theta=float(scaling.get("rope_theta") or self.get("rope_theta", theta)),
            scaling=scaling,
            max_position_embeddings=self.shape.max_position_embeddings,
            max_model_len=self.max_model_len,
        )


def model_config(fields: Mapping[str, Any], max_model_len: int | None = None) -> ModelConfig:
    """The view of a config.json's object. Raises kvasir.models.hf_config.ConfigError."""
    shape = parse_shape(fields)
    text = fields.get("text_config")
    return ModelConfig(
        shape=shape,
        fields=text if isinstance(text, dict) else fields,
        max_model_len=max_model_len or shape.max_position_embeddings,
    )
