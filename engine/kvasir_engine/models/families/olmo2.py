"""OLMo 2: norms after attention and MLP instead of before, and of queries and keys as wholes."""

from __future__ import annotations

import torch

from kvasir_engine.layers.block_output import Output
from kvasir_engine.layers.norm import RMSNorm, ShardedRMSNorm, added
from kvasir_engine.layers.rotary import RotaryTable
from kvasir_engine.models.decoder import DecoderLayer
from kvasir_engine.models.families.llama import LlamaForCausalLM


class PostNormLayer(DecoderLayer):
    """Attention and MLP, each before a norm of its output."""

    norm_names = ("post_attention_layernorm", "post_feedforward_layernorm")
    post_attention_layernorm: RMSNorm
    post_feedforward_layernorm: RMSNorm

    def forward(
        self, x: Output, residual: torch.Tensor | None, rotary: RotaryTable
    ) -> tuple[Output, torch.Tensor | None]:
        """The layer's own output and the residual it is still to be added to."""
        x = added(x, residual)
        attended = self.post_attention_layernorm.of_output(self.self_attn(x, rotary))
        x = added(attended, x)
        return self.post_feedforward_layernorm.of_output(self.mlp(x)), x


class Olmo2ForCausalLM(LlamaForCausalLM):
    """OLMo 2."""

    layer_type = PostNormLayer
    norm_eps = 1e-5
    qk_norm = ShardedRMSNorm
