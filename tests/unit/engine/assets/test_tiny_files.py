"""What other parts rely on in the shipped model's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def test_all_files_together_stay_small(tiny: Path) -> None:
    assert sum(file.stat().st_size for file in tiny.iterdir()) <= 10_000_000


def test_the_shape_suits_tensor_parallelism_and_long_prompts(tiny: Path) -> None:
    config = _json(tiny / "config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] >= 2048
    assert config["num_key_value_heads"] % 2 == 0
    assert config["num_attention_heads"] > config["num_key_value_heads"]
    assert config["vocab_size"] % 2 == 0
    assert config["tie_word_embeddings"]


def test_the_weights_are_bf16_and_without_a_second_embedding(tiny: Path) -> None:
    config = _json(tiny / "config.json")
    with safe_open(tiny / "model.safetensors", "np") as weights:
        names = set(weights.keys())
        kinds = {weights.get_slice(name).get_dtype() for name in names}
        embedding = weights.get_slice("model.embed_tokens.weight").get_shape()
    assert kinds == {"BF16"}
    assert "lm_head.weight" not in names
    assert embedding == [config["vocab_size"], config["hidden_size"]]


def test_generation_ends_at_the_end_of_a_turn(tiny: Path) -> None:
    vocabulary = _json(tiny / "tokenizer.json")["model"]["vocab"]
    generation = _json(tiny / "generation_config.json")
    stops = [vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]]
    assert generation["eos_token_id"] == stops
    assert _json(tiny / "config.json")["eos_token_id"] == stops[0]
    assert _json(tiny / "tokenizer_config.json")["eos_token"] == "<|im_end|>"
    assert generation["pad_token_id"] == stops[1]
