"""Rounding of weights to 4 bits, and checkpoints of them as each tool writes them.

Written from the tools' own descriptions of their layouts and shares nothing with the engine, but
for `random_int4`: AutoAWQ's `WQLinear_GEMM`, AutoGPTQ's `QuantLinear.pack`, and compressed-tensors'
`pack_to_int32`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from kvasir_engine.kernels.int4.int4_weights import UNIT, Int4Weight, groups_of, packed

Tool = Literal["awq", "gptq", "compressed-tensors"]
TOOLS: tuple[Tool, ...] = ("awq", "gptq", "compressed-tensors")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output of eight that each nibble holds, the lowest first."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """How weights are rounded; `reordered`: inputs are grouped in an order of their own."""

    group: int = 32
    """-1 for all inputs."""
    symmetric: bool = False
    reordered: bool = False
    scales: torch.dtype = torch.float16


@dataclass(frozen=True, slots=True)
class RoundedWeight:
    """Numbers 0 .. 15 [outputs, inputs], scales and zero points [outputs, groups], and the group of
    each input."""

    numbers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    groups: torch.Tensor

    def dequantised(self) -> torch.Tensor:
        """fp32 [outputs, inputs]."""
        apart = self.numbers - self.zeros[:, self.groups]
        return apart.float() * self.scales.float()[:, self.groups]


def rounded(weight: torch.Tensor, how: Rounding) -> RoundedWeight:
    """Return `weight` [outputs, inputs] with each group from its smallest to its largest number, or
    from minus to plus its largest."""
    inputs = weight.shape[1]
    group = inputs if how.group == -1 else how.group
    groups = torch.arange(inputs) // group
    if how.reordered:
        groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    zeros, scales = [], []
    for one in range(int(groups.max()) + 1):
        part = weight[:, groups == one].float()
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        largest = torch.maximum(-low, high)
        spread = largest * 2 / 15 if how.symmetric else (high - low) / 15
        scale = spread.clamp(min=1e-6).to(how.scales)
        scales.append(scale)
        zero = torch.full_like(low, 8) if how.symmetric else (-low / scale.float()).round()
        zeros.append(zero.clamp(0, 15).int())
    scale, zero = torch.stack(scales, 1), torch.stack(zeros, 1)
    numbers = (weight / scale.float()[:, groups]).round() + zero[:, groups]
    return RoundedWeight(numbers.clamp(0, 15).int(), scale, zero, groups)


def words_of(numbers: torch.Tensor, dim: int, order: Iterable[int] = range(8)) -> torch.Tensor:
    """Return int32 with eight numbers each along dim; nibble i has number order[i] of them."""
    length = numbers.shape[dim]
    words = torch.zeros_like(numbers.index_select(dim, torch.arange(0, length, 8)).long())
    for nibble, which in enumerate(order):
        words |= numbers.index_select(dim, torch.arange(which, length, 8)).long() << 4 * nibble
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def stored_tensors(name: str, weight: RoundedWeight, how: Rounding, tool: Tool) -> dict[str, Any]:
    """Return the tensors that `tool` writes for the module `name`."""
    if tool == "compressed-tensors":
        made = {
            "weight_packed": words_of(weight.numbers, 1),
            "weight_scale": weight.scales,
            "weight_shape": torch.tensor(weight.numbers.shape),
        }
        if not how.symmetric:
            made["weight_zero_point"] = words_of(weight.zeros, 0)
        if how.reordered:
            made["weight_g_idx"] = weight.groups.int()
    elif tool == "awq":
        made = {
            "qweight": words_of(weight.numbers.t(), 1, AWQ_ORDER),
            "qzeros": words_of(weight.zeros.t(), 1, AWQ_ORDER),
            "scales": weight.scales.t(),
        }
    else:
        made = {
            "qweight": words_of(weight.numbers.t(), 0),
            "qzeros": words_of((weight.zeros.t() - 1) % 16, 1),
            "scales": weight.scales.t(),
            "g_idx": weight.groups.int(),
        }
    return {f"{name}.{ending}": tensor.contiguous() for ending, tensor in made.items()}


def quantization_config(how: Rounding, tool: Tool, ignored: list[str]) -> dict[str, Any]:
    """Return the `quantization_config` that `tool` writes."""
    if tool == "awq":
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": how.group,
            "zero_point": not how.symmetric,
            "version": "gemm",
            "modules_to_not_convert": ignored,
        }
    if tool == "gptq":
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": how.group,
            "sym": how.symmetric,
            "desc_act": how.reordered,
            "checkpoint_format": "gptq",
            "dynamic": {rf"-:.*{name}$": {} for name in ignored},
        }
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": how.symmetric,
        "strategy": "channel" if how.group == -1 else "group",
        "group_size": None if how.group == -1 else how.group,
        "actorder": "group" if how.reordered else None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head", *(f"re:.*{name}$" for name in ignored)],
    }


@dataclass(frozen=True, slots=True)
class Int4Checkpoint:
    """Directory of a plain checkpoint's weights in 4 bits, and one of the same numbers, plain."""

    source: Path
    target: Path
    how: Rounding
    tool: Tool
    ignored: list[str] = field(default_factory=list)

    @property
    def int4(self) -> Path:
        """Directory of the weights in 4 bits."""
        return self.target / "int4"

    @property
    def plain(self) -> Path:
        """Directory of the same numbers in fp32."""
        return self.target / "plain"

    def save(self) -> None:
        """Write both."""
        config = json.loads((self.source / "config.json").read_text())
        tensors = load_file(self.source / "model.safetensors")
        quantized, plain = {}, {}
        for name, tensor in tensors.items():
            quantized[name] = plain[name] = tensor
            module = name.removesuffix(".weight")
            if self._is_quantized(name, module):
                del quantized[name]
                weight = rounded(tensor, self.how)
                quantized |= stored_tensors(module, weight, self.how, self.tool)
                plain[name] = weight.dequantised()
        asked = quantization_config(self.how, self.tool, self.ignored)
        self._write(self.int4, config | {"quantization_config": asked}, quantized)
        self._write(self.plain, config | {"dtype": "float32"}, plain)

    def _write(self, directory: Path, config: Any, tensors: dict[str, torch.Tensor]) -> None:
        directory.mkdir(parents=True)
        for other in (*self.source.glob("*.json"), *self.source.glob("*.jinja")):
            (directory / other.name).write_bytes(other.read_bytes())
        (directory / "config.json").write_text(json.dumps(config))
        save_file(tensors, directory / "model.safetensors")

    def _is_quantized(self, name: str, module: str) -> bool:
        # Of Mixtral and others the experts' names do not end so.
        linear = name.endswith("_proj.weight") or ".experts." in name
        return linear and not module.endswith(tuple(self.ignored) or ("none",))


def random_int4(
    outputs: int,
    inputs: int,
    how: Rounding,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Int4Weight, torch.Tensor]:
    """Return a weight in the engine's layout on `device`, and the fp32 matrix that it stands for;
    its scales are exact in `dtype`."""
    weight = rounded(torch.randn(outputs, inputs), how)
    scales, zeros = weight.scales.to(dtype), weight.zeros.to(torch.uint8)
    group = -(-inputs // UNIT) * UNIT if how.group == -1 else how.group
    missing = groups_of(inputs, group) - scales.shape[1]

    def by_group(numbers: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(numbers, (0, missing)).t().contiguous().to(device)

    words, of_zeros = packed(weight.numbers).to(device), None if how.symmetric else by_group(zeros)
    exact = RoundedWeight(weight.numbers, scales, weight.zeros, weight.groups)
    return Int4Weight(words, by_group(scales), of_zeros, group), exact.dequantised()
