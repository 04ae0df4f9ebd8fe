import pytest

from kvasir.models.quantization import Numbers, Quantization, Scales


@pytest.mark.parametrize(
    ("pattern", "module"),
    [
        ("lm_head", "lm_head"),
        ("model.layers.0", "model.layers.0.mlp.down_proj"),
        ("gate", "model.layers.3.mlp.gate"),
        (r"re:.*\.mlp\.gate$", "model.layers.3.mlp.gate"),
    ],
)
def test_a_module_that_is_ignored_stays_plain(pattern: str, module: str) -> None:
    made = Quantization("fp8", Numbers.FP8, Scales.CHANNEL, ignored=(pattern,))

    assert not made.applies_to(module)


@pytest.mark.parametrize(
    ("pattern", "module"),
    [
        ("model.layers.1", "model.layers.10.mlp.down_proj"),
        ("gate", "model.layers.3.mlp.gate_proj"),
        (r"re:.*\.mlp\.gate$", "model.layers.3.mlp.gate_proj"),
    ],
)
def test_a_name_that_only_begins_alike_is_not_ignored(pattern: str, module: str) -> None:
    made = Quantization("fp8", Numbers.FP8, Scales.CHANNEL, ignored=(pattern,))

    assert made.applies_to(module)
