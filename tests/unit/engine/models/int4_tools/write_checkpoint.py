"""Quantise a tiny random Llama to 4 bits by a tool that users have: run in the tool's environment.

    python write_checkpoint.py llmcompressor|gptqmodel NAME

writes NAME beside this file, with logits.safetensors: what transformers' model computes in fp32
from the matrices that the tool's own code dequantises. README.md has the versions.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
TOKENS = [7 * i % VOCABULARY for i in range(24)]
KEPT = ("config.json", "model.safetensors")

WEIGHTS = {"num_bits": 4, "type": "int"}
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "groups-asymmetric": {"strategy": "group", "group_size": 32, "symmetric": False},
    "channels": {"strategy": "channel", "symmetric": True},
}
"""What llm-compressor is asked for, by name of the checkpoint; rounded to the nearest."""
ORDERED = {"strategy": "group", "group_size": 32, "symmetric": True}
"""The same with GPTQ and `actorder` "weight", as the checkpoint `actorder-weight`."""
GPTQ: dict[str, dict[str, Any]] = {
    "gptq-groups": {"group_size": 32, "sym": False, "desc_act": False},
    "gptq-desc-act": {"group_size": 32, "sym": True, "desc_act": True},
    "gptq-channels": {"group_size": -1, "sym": True, "desc_act": False, "act_group_aware": False},
}
"""What GPTQModel is asked for."""


def save_plain(directory: Path, dtype: torch.dtype) -> None:
    """Write the plain model, the same each time."""
    torch.manual_seed(5)
    model: Any = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.to(dtype).save_pretrained(directory)
    words = Tokenizer(WordLevel({str(i): i for i in range(VOCABULARY)}, "0"))
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1")
    tokenizer.save_pretrained(directory)


def calibration() -> list[list[int]]:
    """Return token ids; some come oftener than others, so that inputs matter unequally."""
    torch.manual_seed(1)
    drawn = (torch.rand(32, 64) ** 3 * VOCABULARY).long()
    return [row.tolist() for row in drawn]


def by_llmcompressor(plain: Path, target: Path) -> dict[str, torch.Tensor]:
    """Quantise, and return the matrices by name."""
    tool: Any = import_module("llmcompressor")
    modifiers: Any = import_module("llmcompressor.modifiers.quantization")
    given: dict[str, Any] = {}
    weights = WEIGHTS | COMPRESSIONS.get(target.name, ORDERED)
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    options: dict[str, Any] = {"config_groups": groups, "ignore": ["lm_head"]}
    if target.name in COMPRESSIONS:
        recipe = modifiers.QuantizationModifier(**options)
    else:
        recipe = modifiers.GPTQModifier(**options, actorder="weight")
        rows = calibration()
        masks = [[1] * len(row) for row in rows]
        datasets: Any = import_module("datasets")
        made = datasets.Dataset.from_dict({"input_ids": rows, "attention_mask": masks})
        given = {"dataset": made, "num_calibration_samples": len(rows), "max_seq_length": 64}
    tool.oneshot(model=str(plain), recipe=recipe, output_dir=str(target), **given)
    base: Any = import_module("compressed_tensors.compressors.base")
    loaded: Any = LlamaForCausalLM.from_pretrained(target)
    found = {}
    for name, module in loaded.named_modules():
        if hasattr(module, "weight_packed"):
            base.decompress_module(module)
        if name.endswith("_proj"):
            found[f"{name}.weight"] = module.weight.detach()
    return found


def by_gptqmodel(plain: Path, target: Path) -> dict[str, torch.Tensor]:
    """Quantise, and return the matrices by name."""
    tool: Any = import_module("gptqmodel")
    config = tool.QuantizeConfig(bits=4, offload_to_disk=False, **GPTQ[target.name])
    model = tool.GPTQModel.load(str(plain), config, device="cpu")
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in calibration()]
    model.quantize(rows, batch_size=1)
    model.save(str(target))
    loaded = tool.GPTQModel.load(str(target), backend=tool.BACKEND.TORCH, device="cpu")
    return {
        f"{name}.weight": module.dequantize_weight().t().detach()
        for name, module in loaded.model.named_modules()
        if hasattr(module, "dequantize_weight")
    }


TOOLS = {"llmcompressor": by_llmcompressor, "gptqmodel": by_gptqmodel}


def save_logits(plain: Path, matrices: dict[str, torch.Tensor], target: Path) -> None:
    """Write the logits [tokens, vocabulary] of the plain model with these matrices instead."""
    model: Any = LlamaForCausalLM.from_pretrained(plain, dtype=torch.float32)
    own = dict(model.named_parameters())
    with torch.inference_mode():
        for name, matrix in matrices.items():
            own[name].copy_(matrix.float())
        logits = model(torch.tensor([TOKENS])).logits[0]
    print(len(matrices), "matrices")
    save_file({"logits": logits}, target / "logits.safetensors")


def main() -> None:
    """Write the checkpoint that the command line names."""
    tool, name = sys.argv[1:]
    target = Path(__file__).parent / name
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        plain, made = Path(directory) / "plain", Path(directory) / name
        save_plain(plain, torch.bfloat16 if tool == "llmcompressor" else torch.float16)
        matrices = TOOLS[tool](plain, made)
        target.mkdir()
        save_logits(plain, matrices, target)
        for file in KEPT:
            shutil.copy(made / file, target / file)


if __name__ == "__main__":
    main()
