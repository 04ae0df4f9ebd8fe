"""Read how a checkpoint's weights are quantised from its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvasir.models.config_error import ConfigError
from kvasir.models.quantization import Quantization
from kvasir.models.quantization_config.compressed_tensors import compressed_tensors
from kvasir.models.quantization_config.config_fields import ConfigFields
from kvasir.models.quantization_config.weight_formats import awq, fp8, gptq, modelopt, mxfp4

_FIELDS = ("quantization_config", "compression_config")
"""Names of the object, the usual one first."""

_READERS: dict[str, Callable[[ConfigFields], Quantization]] = {
    "awq": awq,
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "gptq": gptq,
    "modelopt": modelopt,
    "mxfp4": mxfp4,
}


def parse_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """Return how the linear layers of the model with this config.json are quantised.

    None stands for plain weights. The text part of a multimodal config comes before the outer
    object. Raises ConfigError, one sentence, for a format that is not supported.
    """
    found = _find(config)
    if not found:
        return None
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"config field 'quantization_config' must be an object, not {str(found)[:60]!r}"
        )
    fields = ConfigFields(found)
    # ModelOpt's own file has no method.
    unnamed = "modelopt" if "quantization" in found or "quant_algo" in found else None
    return _READERS[fields.choose("quant_method", *_READERS, default=unnamed)](fields)


def _find(config: Mapping[str, Any]) -> Any:
    text = config.get("text_config")
    for source in (text, config) if isinstance(text, Mapping) else (config,):
        for name in _FIELDS:
            if source.get(name) is not None:
                return source[name]
    return None
