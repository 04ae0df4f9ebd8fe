"""What a simulated engine takes from a model directory, a profile and the settings."""

import json
import subprocess
import sys

import pytest

from kvasir.models.hf_config import read_shape
from kvasir_engine.settings import (
    CacheSettings,
    EngineSettings,
    SettingsError,
)
from kvasir_engine.sim.latency_model import SpeedProfile
from kvasir_engine.sim.sim_build import build_sim_runner, ordinary_tokens

CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "sliding_window": 128,
    "eos_token_id": 2,
}


@pytest.fixture
def model_dir(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def write_tokenizer(model_dir, vocab_size, added):
    tokens = {"vocab": {f"t{i}": i for i in range(vocab_size)}}
    added_tokens = [{"id": token, "special": True} for token in added]
    (model_dir / "tokenizer.json").write_text(
        json.dumps({"model": tokens, "added_tokens": added_tokens})
    )


def settings(model_dir, **fields):
    return EngineSettings(str(model_dir), device="sim", **fields)


@pytest.mark.parametrize(
    ("vocab_size", "added", "expected"),
    [
        (500, [0, 1, 2], range(3, 500)),
        (480, [480, 481, 511], range(3, 480)),
        (512, [0, 100, 400, 511], range(101, 400)),
        (600, [], range(3, 512)),
    ],
)
def test_ordinary_tokens_are_the_longest_run_of_plain_ids(model_dir, vocab_size, added, expected):
    write_tokenizer(model_dir, vocab_size, added)
    assert ordinary_tokens(model_dir, read_shape(model_dir)) == expected


def test_without_a_tokenizer_the_end_token_is_avoided(model_dir):
    assert ordinary_tokens(model_dir, read_shape(model_dir)) == range(3, 512)


def test_a_vocabulary_of_special_tokens_is_refused(model_dir):
    write_tokenizer(model_dir, 3, [0, 1, 2])
    with pytest.raises(SettingsError, match="special tokens only"):
        ordinary_tokens(model_dir, read_shape(model_dir))


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {}}', '{"model": {"vocab": 3}}'])
def test_a_broken_tokenizer_is_named(model_dir, content):
    (model_dir / "tokenizer.json").write_text(content)
    with pytest.raises(SettingsError, match=r"tokenizer\.json"):
        build_sim_runner(settings(model_dir), model_dir)


def test_the_pool_is_the_profiles_unless_overridden(model_dir):
    blocks = SpeedProfile.load("instant").num_kv_blocks
    assert build_sim_runner(settings(model_dir), model_dir).num_blocks == [blocks]
    large = CacheSettings(block_size=64)
    assert build_sim_runner(settings(model_dir, cache=large), model_dir).num_blocks == [blocks // 4]
    fixed = CacheSettings(num_blocks=40)
    assert build_sim_runner(settings(model_dir, cache=fixed), model_dir).num_blocks == [40]


def test_sizes_come_from_the_config(model_dir):
    built_runner = build_sim_runner(settings(model_dir), model_dir)
    assert built_runner.vocab_size == 512
    assert built_runner.max_model_len == 4096
    assert [group.window for group in built_runner.groups] == [128]


def test_sizes_come_from_what_the_user_puts_into_the_config(model_dir):
    overridden = settings(
        model_dir,
        hf_overrides={"vocab_size": 600},
        rope_scaling={"rope_type": "yarn", "factor": 2.0},
    )
    built_runner = build_sim_runner(overridden, model_dir)
    assert (built_runner.vocab_size, built_runner.max_model_len) == (600, 8192)


def test_the_quantisation_is_what_the_user_asks_for(model_dir):
    assert build_sim_runner(settings(model_dir), model_dir).quantization is None
    asked = settings(model_dir, quantization="fp8")
    assert build_sim_runner(asked, model_dir).quantization == "fp8"
    with pytest.raises(SettingsError, match="--quantization gptq: the checkpoint's weights are"):
        build_sim_runner(settings(model_dir, quantization="gptq"), model_dir)


def test_ranks_have_room_for_as_many_times_the_blocks(model_dir):
    one = build_sim_runner(settings(model_dir), model_dir)
    two = build_sim_runner(settings(model_dir, tensor_parallel_size=2), model_dir)
    assert two.num_blocks == [2 * blocks for blocks in one.num_blocks]


@pytest.mark.parametrize("asked", ["fp8", "fp8_e4m3"])
def test_a_cache_in_fp8_has_twice_the_blocks(model_dir, asked):
    plain = build_sim_runner(settings(model_dir), model_dir)
    cache = CacheSettings(kv_cache_dtype=asked)
    halved = build_sim_runner(settings(model_dir, cache=cache), model_dir)
    assert halved.num_blocks == [2 * blocks for blocks in plain.num_blocks]
    assert [made.groups[0].dtype for made in (plain, halved)] == ["float32", "fp8"]


def test_a_context_beyond_the_pool_is_lowered_or_refused(model_dir):
    cache = CacheSettings(num_blocks=11)
    assert build_sim_runner(settings(model_dir, cache=cache), model_dir).max_model_len == 160
    with pytest.raises(SettingsError, match="--max-model-len 161 does not fit"):
        build_sim_runner(settings(model_dir, cache=cache, max_model_len=161), model_dir)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_simulated_core_is_built_without_torch(model_dir, ranks):
    script = f"""
import sys
from pathlib import Path
from kvasir_engine.core.build import build_core
from kvasir_engine.settings import EngineSettings
settings = EngineSettings({str(model_dir)!r}, device="sim", tensor_parallel_size={ranks})
core = build_core(settings, Path({str(model_dir)!r}))
core.built_runner.runner.close()
sys.exit(any(name in sys.modules for name in ("torch", "transformers")))
"""
    env = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=env)
