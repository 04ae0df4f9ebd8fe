"""Qwen3: Llama's layers with a norm on each head's query and key."""

from __future__ import annotations

from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.models.families.llama import LlamaForCausalLM


class Qwen3ForCausalLM(LlamaForCausalLM):
    """The dense Qwen3 models."""

    qk_norm = RMSNorm
