"""Rotary embedding against transformers' own, for every rope type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

from kvasir_engine.layers.rotary import RotaryConfig, RotaryEmbedding, apply_rotary

LONG = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [1.0 + i for i in range(8)]}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16,
        "beta_slow": 2,
        "truncate": False,
        "mscale": 1.5,
        "mscale_all_dim": 0.7,
    },
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3},
    {"rope_type": "longrope", "original_max_position_embeddings": 64, **LONG},
    {
        "rope_type": "longrope",
        "original_max_position_embeddings": 64,
        "factor": 2.0,
        "attention_factor": 1.1,
        **LONG,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_angles_equal_transformers(scaling: dict[str, Any]) -> None:
    parameters = {"rope_theta": 5000.0, **scaling}
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters=dict(parameters),
    )
    positions = torch.tensor([0, 1, 63, 64, 200])
    theirs = LlamaRotaryEmbedding(config)
    if scaling["rope_type"] == "longrope":
        # Up to the original length transformers would take the short factors.
        theirs.inv_freq, _ = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=256)
    want = theirs(torch.zeros(1), positions[None])
    ours = RotaryEmbedding(RotaryConfig(16, 5000.0, parameters, 256, 256))
    cos, sin = ours(positions, torch.float32)
    assert cos.shape == sin.shape == (5, 1, 16)
    torch.testing.assert_close(cos[:, 0], want[0][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sin[:, 0, 8:], want[1][0, :, 8:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sin[:, 0, :8], -want[1][0, :, :8], atol=1e-5, rtol=1e-5)


def test_longrope_takes_short_factors_for_models_served_short() -> None:
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 64, **LONG}
    short, long = (
        RotaryEmbedding(RotaryConfig(16, 1e4, scaling, 256, served)).frequencies[:8]
        for served in (64, 65)
    )
    ratio = torch.tensor(LONG["long_factor"]) / torch.tensor(LONG["short_factor"])
    torch.testing.assert_close(short / long, ratio)


@pytest.mark.parametrize("rotary_dim", [16, 8])
def test_rotation_equals_transformers(rotary_dim: int) -> None:
    torch.manual_seed(0)
    rotary = RotaryEmbedding(RotaryConfig(rotary_dim, 10000.0))
    positions = torch.arange(5)
    x = torch.randn(5, 3, 16)
    got = apply_rotary(x, rotary(positions, torch.float32))
    angles = positions[:, None] * rotary.frequencies
    q = x.transpose(0, 1)[None]
    want, _ = apply_rotary_pos_emb(q, q, angles.cos()[None], angles.sin()[None])
    torch.testing.assert_close(got, want[0].transpose(0, 1))


def test_angles_are_exact_far_out_in_half_precision() -> None:
    rotary = RotaryEmbedding(RotaryConfig(16, 10000.0))
    cos, _ = rotary(torch.tensor([100_003]), torch.bfloat16)
    want = torch.cos(100_003 * rotary.frequencies.double())
    torch.testing.assert_close(cos[0, 0].double(), want, atol=1e-2, rtol=1e-2)
