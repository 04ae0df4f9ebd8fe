"""Architectures that have model code here, by their name in config.json."""

from __future__ import annotations

from importlib import import_module

from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import DecoderForCausalLM

NATIVE: dict[str, tuple[str, str]] = {
    "Exaone4ForCausalLM": ("exaone4", "Exaone4ForCausalLM"),
    "ExaoneForCausalLM": ("exaone", "ExaoneForCausalLM"),
    "Gemma2ForCausalLM": ("gemma2", "Gemma2ForCausalLM"),
    "Gemma3ForCausalLM": ("gemma3", "Gemma3ForCausalLM"),
    "Gemma3ForConditionalGeneration": ("gemma3", "Gemma3ForCausalLM"),
    "GptOssForCausalLM": ("gpt_oss", "GptOssForCausalLM"),
    "GraniteForCausalLM": ("granite", "GraniteForCausalLM"),
    "InternLM3ForCausalLM": ("llama", "LlamaForCausalLM"),
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("llama", "LlamaForCausalLM"),
    "MixtralForCausalLM": ("mixtral", "MixtralForCausalLM"),
    "Olmo2ForCausalLM": ("olmo2", "Olmo2ForCausalLM"),
    "Phi3ForCausalLM": ("phi3", "Phi3ForCausalLM"),
    "Qwen2ForCausalLM": ("llama", "LlamaForCausalLM"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "SmolLM3ForCausalLM": ("smollm3", "SmolLM3ForCausalLM"),
    "StableLmForCausalLM": ("stablelm", "StableLmForCausalLM"),
}
"""Architecture to module and class; a module is imported when its model is built."""


def build_native(architecture: str, config: ModelConfig) -> DecoderForCausalLM:
    """An uninitialised model in the default dtype on the default device. Raises ValueError."""
    module, name = NATIVE[architecture]
    cls = getattr(import_module(f"kvasir_engine.models.families.{module}"), name)
    model: DecoderForCausalLM = cls(config)
    return model
