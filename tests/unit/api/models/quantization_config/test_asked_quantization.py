"""Which format a user's --quantization makes of a checkpoint's."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.engine_values import QuantizationName
from kvasir.models.config_error import ConfigError
from kvasir.models.quantization import Activations, Numbers, Quantization, Scales
from kvasir.models.quantization_config import (
    parse_quantization,
    put_quantization,
    with_quantization,
)

PLAIN: dict[str, Any] = {"hidden_size": 8}
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
MODELOPT = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}
ONLINE = Quantization(
    "fp8",
    Numbers.FP8,
    Scales.CHANNEL,
    Activations.PER_TOKEN,
    online=True,
    ignored=("lm_head",),
)


@pytest.mark.parametrize("config", [PLAIN, FP8, MODELOPT, AWQ])
def test_auto_is_as_the_checkpoint_is(config: dict[str, Any]) -> None:
    assert with_quantization(config, "auto") == parse_quantization(config)
    assert put_quantization(config, "auto") == config


@pytest.mark.parametrize(
    "config", [PLAIN, {"text_config": {**PLAIN, "quantization_config": None}, "dtype": "bfloat16"}]
)
def test_fp8_quantises_plain_weights_as_they_are_loaded(config: dict[str, Any]) -> None:
    before = repr(config)
    made = put_quantization(config, "fp8")
    assert parse_quantization(made) == with_quantization(config, "fp8") == ONLINE
    assert put_quantization(made, "fp8") == made
    assert repr(config) == before


@pytest.mark.parametrize(
    ("config", "asked"), [(FP8, "fp8"), (MODELOPT, "fp8"), (MODELOPT, "modelopt"), (AWQ, "awq")]
)
def test_the_checkpoints_own_format_stays(config: dict[str, Any], asked: QuantizationName) -> None:
    assert with_quantization(config, asked) == parse_quantization(config)


@pytest.mark.parametrize(
    ("config", "asked", "sentence"),
    [
        (PLAIN, "awq", "--quantization awq: the checkpoint's weights are plain; take auto, or fp8"),
        (
            AWQ,
            "fp8",
            "--quantization fp8: the checkpoint's weights are awq (int4, groups of 64); t",
        ),
        (AWQ, "gptq", "weights are awq (int4, groups of 64); take auto"),
        (FP8, "compressed-tensors", "weights are fp8 (blocks of 128 x 128); take auto"),
    ],
)
def test_another_format_is_refused(
    config: dict[str, Any], asked: QuantizationName, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        with_quantization(config, asked)
    assert sentence in str(caught.value)
