"""What stands in a config after a user's overrides."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvasir.models.config_overrides import ConfigOverrides, overrides_in, read_overrides
from kvasir.models.hf_config import ConfigError
from kvasir.models.quantization_config import parse_quantization

CONFIG = {"rope_theta": 1e4, "max_position_embeddings": 100, "vocab_size": 7}
YARN = {"rope_type": "yarn", "factor": 4.0}


def test_fields_are_replaced_and_objects_merged() -> None:
    config = {"a": 1, "text_config": {"b": 2, "c": {"d": 3, "e": 4}}, "f": [1]}
    fields = {"a": None, "text_config": {"c": {"d": 5}}, "f": {"g": 6}}
    assert ConfigOverrides(fields).apply(config) == {
        "a": None,
        "text_config": {"b": 2, "c": {"d": 5, "e": 4}},
        "f": {"g": 6},
    }
    assert config["text_config"] == {"b": 2, "c": {"d": 3, "e": 4}}, "the given one stays"


def test_nothing_given_changes_nothing() -> None:
    assert ConfigOverrides().apply(CONFIG) == CONFIG


@pytest.mark.parametrize("wrapped", [False, True])
def test_rope_of_the_text_part(wrapped: bool) -> None:
    config = {"text_config": CONFIG} if wrapped else CONFIG
    made = ConfigOverrides(rope_scaling=YARN, rope_theta=5e5).apply(config)
    text = made["text_config"] if wrapped else made
    assert text == {
        "rope_theta": 5e5,
        "rope_scaling": {**YARN, "original_max_position_embeddings": 100},
        "max_position_embeddings": 400,
        "vocab_size": 7,
    }


def test_rope_where_the_config_has_its_newer_form() -> None:
    config = {
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        "max_position_embeddings": 100,
    }
    scaled = ConfigOverrides(rope_scaling={"type": "linear", "factor": 2}).apply(config)
    assert scaled == {
        "rope_parameters": {"rope_theta": 1e6, "type": "linear", "factor": 2},
        "max_position_embeddings": 200,
    }
    based = ConfigOverrides(rope_theta=3.0).apply(config)
    assert based["rope_parameters"] == {"rope_theta": 3.0, "rope_type": "default"}


def test_the_original_length_is_what_the_factor_multiplies() -> None:
    scaling = {**YARN, "original_max_position_embeddings": 50}
    assert ConfigOverrides(rope_scaling=scaling).apply(CONFIG)["max_position_embeddings"] == 200
    llama3 = {"rope_type": "llama3", "factor": 8.0}
    made = ConfigOverrides(rope_scaling=llama3).apply(CONFIG)
    assert (made["rope_scaling"], made["max_position_embeddings"]) == (llama3, 100)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (ConfigOverrides(rope_scaling={"factor": 2}), "must have 'rope_type'"),
        (ConfigOverrides(rope_scaling={"type": "yarn"}), "'factor' must be .* not None"),
        (ConfigOverrides(rope_scaling={**YARN, "factor": 0.5}), "'factor' must be .* not 0.5"),
        (ConfigOverrides(rope_scaling={**YARN, "factor": math.inf}), "'factor' must be .* not inf"),
        (ConfigOverrides(rope_scaling={**YARN, "factor": math.nan}), "'factor' must be .* not nan"),
        (ConfigOverrides(rope_scaling={**YARN, "factor": 10**400}), "'factor' must be"),
    ],
)
def test_a_scaling_that_cannot_work_is_refused(overrides: ConfigOverrides, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        overrides.apply(CONFIG)


def test_a_rope_for_each_kind_of_layer_is_set_by_field() -> None:
    config = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}
    with pytest.raises(ConfigError, match="by --hf-overrides"):
        ConfigOverrides(rope_theta=2.0).apply(config)
    fields = {"rope_parameters": {"full_attention": {"rope_theta": 2.0}}}
    assert ConfigOverrides(fields).apply(config) == fields


@pytest.mark.parametrize("given", ["{", "[1]", '"text"', "[" * 100_000])
def test_what_is_no_object_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="--hf-overrides takes a JSON object"):
        read_overrides(given, "--hf-overrides")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--max-num-seqs", "4"], ConfigOverrides()),
        (["--hf-overrides", '{"a": 1}'], ConfigOverrides({"a": 1})),
        (['--hf-overrides={"a": 1}', "--rope-theta=2"], ConfigOverrides({"a": 1}, None, 2.0)),
        (["--rope-scaling", '{"type": "x"}'], ConfigOverrides({}, {"type": "x"})),
    ],
)
def test_overrides_among_arguments(args: list[str], expected: ConfigOverrides) -> None:
    assert overrides_in(args) == expected


@pytest.mark.parametrize("args", [["--rope-theta", "x"], ["--rope-scaling"], ["--hf-overrides=1"]])
def test_arguments_that_cannot_be_read(args: list[str]) -> None:
    with pytest.raises(ConfigError, match=args[0].partition("=")[0]):
        overrides_in(args)


def test_a_config_is_any_mapping() -> None:
    config: Any = {"a": {"b": 1}}
    assert ConfigOverrides({"a": {"c": 2}}).apply(config) == {"a": {"b": 1, "c": 2}}


def test_a_quantisation_is_put_into_the_config_as_overridden() -> None:
    overrides = ConfigOverrides({"quantization_config": None}, quantization="fp8")
    made = overrides.apply(CONFIG | {"quantization_config": {"quant_method": "torchao"}})
    found = parse_quantization(made)
    assert found is not None
    assert found.online
    with pytest.raises(ConfigError, match="--quantization awq: the checkpoint's weights are plain"):
        ConfigOverrides(quantization="awq").apply(CONFIG)
