"""Checkpoints that llm-compressor and GPTQModel wrote, as transformers computes the matrices that
the tool's own code dequantises (int4_tools/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from kvasir_engine.loader.load_model import load_model
from kvasir_engine.quantization.int4 import Int4Linear

WRITTEN = sorted(path.parent for path in Path(__file__).parent.glob("int4_tools/*/config.json"))
TOKENS = [7 * i % 64 for i in range(24)]


def test_every_tool_is_there() -> None:
    methods = [
        json.loads((path / "config.json").read_text())["quantization_config"]["quant_method"]
        for path in WRITTEN
    ]
    assert sorted(methods) == ["compressed-tensors"] * 3 + ["gptq"] * 3


@pytest.mark.parametrize("checkpoint", WRITTEN, ids=lambda path: path.name)
def test_logits_are_those_of_the_tools_own_matrices(checkpoint: Path, paged_model) -> None:
    model: Any = load_model(checkpoint).model

    got = paged_model(model).step({"a": TOKENS})["a"]

    want = load_file(checkpoint / "logits.safetensors")["logits"]
    assert sum(isinstance(getattr(m, "method", None), Int4Linear) for m in model.modules()) == 4
    # The tools round what they dequantise to half precision.
    assert float((got - want).norm() / want.norm()) < 0.01
