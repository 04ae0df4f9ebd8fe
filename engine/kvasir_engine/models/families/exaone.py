"""EXAONE 3 and 3.5: Llama's layers under GPT-2's names."""

from __future__ import annotations

import re

from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.llama import LlamaForCausalLM

_NAMES = {
    "wte": "embed_tokens",
    "h": "layers",
    "ln_f": "norm",
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.attention": "self_attn",
    "out_proj": "o_proj",
    "c_fc_0": "gate_proj",
    "c_fc_1": "up_proj",
    "c_proj": "down_proj",
}
_THEIRS = re.compile(rf"(?<=\.)({'|'.join(map(re.escape, _NAMES))})(?=\.)")


class ExaoneForCausalLM(LlamaForCausalLM):
    """EXAONE 3 and 3.5, whose code is not part of transformers."""

    norm_eps = 1e-5
    act = ("activation_function", "silu")

    def eps(self, config: ModelConfig) -> float:
        """Number that norms add to the variance."""
        return float(config.get("layer_norm_epsilon", self.norm_eps))

    @staticmethod
    def slot_name(name: str) -> str:
        """Llama's name of the same tensor."""
        if not name.startswith("transformer."):
            return name
        return "model." + _THEIRS.sub(lambda m: _NAMES[m[0]], name).removeprefix("transformer.")
