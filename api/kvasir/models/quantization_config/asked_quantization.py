"""Choice of a quantisation: what `--quantization` makes of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.engine_values import QuantizationName
from kvasir.models.config_error import ConfigError
from kvasir.models.quantization import Numbers, Quantization
from kvasir.models.quantization_config.parse_quantization import parse_quantization

_ONLINE_FP8 = {"quant_method": "fp8", "online": True}
"""The object of plain weights that are quantised as they are loaded: Kvasir's own."""


def with_quantization(config: Mapping[str, Any], asked: QuantizationName) -> Quantization | None:
    """Return how the weights of the model with this config.json are quantised once loaded.

    "auto" is as the checkpoint is. "fp8" quantises plain weights at load, an output channel and a
    token at a time, and is the checkpoint's own where that is FP8. Raises ConfigError, one
    sentence, for another format than the checkpoint's.
    """
    return parse_quantization(put_quantization(config, asked))


def put_quantization(config: Mapping[str, Any], asked: QuantizationName) -> dict[str, Any]:
    """Return the config.json with what `with_quantization` says in it. Raises ConfigError."""
    made = dict(config)
    if asked == "auto":
        return made
    found = parse_quantization(config)
    if found is None and asked == "fp8":
        made["quantization_config"] = dict(_ONLINE_FP8)
    elif found is None:
        raise ConfigError(
            f"--quantization {asked}: the checkpoint's weights are plain; take auto, or fp8, which"
            " quantises them as they are loaded"
        )
    elif found.method != asked and not (asked == "fp8" and found.numbers is Numbers.FP8):
        raise ConfigError(
            f"--quantization {asked}: the checkpoint's weights are {found.summary}; take auto"
        )
    return made
