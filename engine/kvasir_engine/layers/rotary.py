"""Rotary position embedding (arXiv:2104.09864) with the scalings that Hugging Face configs name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kvasir_engine.layers.fused import fused_ops


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Rotation of `rotary_dim` of a head's channels, with base wavelength `theta`.

    `scaling` holds the fields of config.json's rope_scaling (rope_parameters); the lengths choose
    between LongRoPE's two factors and give its attention factor.
    """

    rotary_dim: int
    theta: float
    scaling: Mapping[str, Any] = field(default_factory=dict)
    max_position_embeddings: int = 0
    max_model_len: int = 0

    @property
    def kind(self) -> str:
        """The rope type, "default" when none is named."""
        return str(self.scaling.get("rope_type") or self.scaling.get("type") or "default")

    @property
    def original_length(self) -> int:
        """Context length before the model was extended."""
        return int(
            self.scaling.get("original_max_position_embeddings") or self.max_position_embeddings
        )


def _plain(config: RotaryConfig) -> torch.Tensor:
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device="cpu")
    return 1.0 / (config.theta ** (exponents / config.rotary_dim))


def _default(config: RotaryConfig) -> tuple[torch.Tensor, float]:
    return _plain(config), 1.0


def unrotated(head_dim: int) -> RotaryConfig:
    """The rotary embedding of layers that do not rotate (NoPE): all angles are zero."""
    return RotaryConfig(head_dim, 1.0, {"rope_type": "linear", "factor": math.inf})


def _linear(config: RotaryConfig) -> tuple[torch.Tensor, float]:
    return _plain(config) / float(config.scaling["factor"]), 1.0


def _llama3(config: RotaryConfig) -> tuple[torch.Tensor, float]:
    """Stretch long wavelengths, keep short ones, interpolate those between (Llama 3.1)."""
    plain = _plain(config)
    factor = float(config.scaling["factor"])
    low, high = (float(config.scaling[f"{end}_freq_factor"]) for end in ("low", "high"))
    turns = config.original_length * plain / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / factor + smooth * plain, 1.0


def _longrope(config: RotaryConfig) -> tuple[torch.Tensor, float]:
    """Divide by a factor a channel (arXiv:2402.13753).

    HF switches a sequence from short to long factors when it outgrows the original length, which
    changes keys already cached; here the longest length that is served decides, once.
    """
    original = config.original_length
    name = "long_factor" if config.max_model_len > original else "short_factor"
    factors = torch.tensor(config.scaling[name], dtype=torch.float32, device="cpu")
    scale = config.scaling.get("attention_factor")
    if scale is None:
        stretch = config.scaling.get("factor") or config.max_position_embeddings / original
        scale = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return _plain(config) / factors, float(scale)


def _yarn(config: RotaryConfig) -> tuple[torch.Tensor, float]:
    """Interpolate by wavelength, and scale attention (arXiv:2309.00071, sections 3.2 to 3.4)."""
    get = config.scaling.get
    plain, dim, original = _plain(config), config.rotary_dim, config.original_length
    factor = float(get("factor") or config.max_position_embeddings / original)

    def channel(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = channel(get("beta_fast") or 32), channel(get("beta_slow") or 1)
    if get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low
    interpolated = (ramp / ((high - low) or 0.001)).clamp(0, 1)
    frequencies = plain / factor * interpolated + plain * (1 - interpolated)
    return frequencies, _yarn_attention_factor(config, factor)


def _yarn_attention_factor(config: RotaryConfig, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = config.scaling.get("attention_factor")
    if given is not None:
        return float(given)
    mine, all_dim = config.scaling.get("mscale"), config.scaling.get("mscale_all_dim")
    return mscale(mine) / mscale(all_dim) if mine and all_dim else mscale(1.0)


_KINDS: dict[str, Callable[[RotaryConfig], tuple[torch.Tensor, float]]] = {
    "default": _default,
    # Stretches only what is longer than the model's own context, which is not served.
    "dynamic": _default,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}


class RotaryEmbedding(nn.Module):
    """Cosines and sines of a step's positions, computed once and shared by its layers.

    Raises ValueError for a rope type that is not known, or lacks a field.
    """

    frequencies: torch.Tensor

    def __init__(self, config: RotaryConfig) -> None:
        super().__init__()
        if config.kind not in _KINDS:
            raise ValueError(
                f"config field 'rope_type': {config.kind!r} is not supported;"
                f" one of {sorted(_KINDS)} is"
            )
        try:
            frequencies, self.scale = _KINDS[config.kind](config)
        except KeyError as error:
            raise ValueError(f"config: rope type {config.kind!r} needs a field {error}") from None
        both = torch.cat((frequencies, frequencies))
        self.register_buffer("frequencies", both.to(torch.get_default_device()), persistent=False)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> RotaryTable:
        """Return cos and signed sin of positions [tokens], each [tokens, 1, rotary_dim] of
        `dtype`."""
        fused = fused_ops(positions.device)
        if fused is not None:
            return fused.rotary_table(positions, self.frequencies, self.scale, dtype)
        angles = positions[:, None, None].float() * self.frequencies
        cos, sin = angles.cos() * self.scale, angles.sin() * self.scale
        half = sin.shape[-1] // 2
        sin[..., :half].neg_()
        return cos.to(dtype), sin.to(dtype)


RotaryTable = tuple[torch.Tensor, torch.Tensor]
"""Cosines, and sines whose first half is negated."""


def apply_rotary(x: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Return x [tokens, heads, head_dim] with its first rotary_dim channels rotated."""
    cos, sin = table
    dim = cos.shape[-1]
    turned = x if dim == x.shape[-1] else x[..., :dim]
    # (a, b) -> (a cos - b sin, b cos + a sin): rolling by half a turn swaps a and b.
    rotated = torch.addcmul(turned * cos, turned.roll(dim // 2, dims=-1), sin)
    return rotated if turned is x else torch.cat((rotated, x[..., dim:]), dim=-1)
