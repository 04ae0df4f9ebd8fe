"""The tiny model's shape and its files."""

import json
from pathlib import Path
from typing import Any

import torch
from benchmarks.tiny_model.vocabulary import CONTEXT, SIZE
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

# Written as it stands, so that the file does not depend on the version of transformers.
# Ids: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": CONTEXT,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": SIZE,
}
GENERATION = {"do_sample": False, "eos_token_id": [2, 0], "pad_token_id": 0}


def new_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write config.json, generation_config.json and the weights in bf16."""
    for name, content in (("config", CONFIG), ("generation_config", GENERATION)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    weights = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embeddings
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
