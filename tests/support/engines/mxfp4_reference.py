"""gpt-oss checkpoints with experts in MXFP4, and the plain ones that transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def mxfp4(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [..., inputs] as a checkpoint's blocks [..., inputs / 32, 16] and scales."""
    groups = matrices.float().unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1).clamp(min=2.0**-100)
    exponents = largest.log2().floor() - 2
    scaled = groups / exponents.exp2()[..., None]
    nearest = (scaled.abs()[..., None] - NUMBERS).abs().argmin(-1)
    codes = (nearest + 8 * (scaled < 0)).to(torch.uint8)
    return codes[..., ::2] | (codes[..., 1::2] << 4), (exponents + 127).to(torch.uint8)


def save_mxfp4_models(source: Path, quantized: Path, plain: Path) -> None:
    """Write the model at `source` with experts in MXFP4, and with the same numbers plain."""
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    packed, values = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[name] = values[name] = tensor
            continue
        blocks, scales = mxfp4(tensor.transpose(1, 2))
        packed[f"{name}_blocks"], packed[f"{name}_scales"] = blocks, scales
        numbers = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        values[name] = numbers.contiguous()
    for directory, tensors, fields in (
        (quantized, packed, {**config, "quantization_config": QUANTIZATION}),
        (plain, values, config),
    ):
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(fields))
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
