"""Llama 2, 3 and 3.1; also Mistral (windows), Qwen2 and InternLM 3 (biases), whose layers are the
same."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir_engine.attention.base import AttentionSpec
from kvasir_engine.layers.attention import AttentionConfig
from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.moe import ExpertNames, MoE, MoEConfig
from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.layers.rotary import RotaryConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import Decoder, DecoderForCausalLM, DecoderLayer


class LlamaForCausalLM(DecoderForCausalLM):
    """Pre-norm layers. Families that differ in a part of the layer override its name or method."""

    layer_type: type[DecoderLayer] = DecoderLayer
    norm_eps = 1e-6
    """rms_norm_eps where the config has none."""
    rope_theta = 10_000.0
    """Base wavelength where the config has none."""
    act = ("hidden_act", "silu")
    """The activation's field in the config, and its value where the config has none."""
    qk_norm: type[RMSNorm] | None = None
    fused = False
    """True when checkpoints hold queries, keys and values as one tensor, and gate and up as one."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding_scale: float | None = None,
        logit_cap: float | None = None,
        logit_scale: float | None = None,
    ) -> None:
        shape = config.shape
        layers = [
            self.layer_type(self.attention(config, i), self.mlp(config, i))
            for i in range(shape.num_layers)
        ]
        norm = self.layer_type.norm_type(shape.hidden_size, self.eps(config))
        rotary, of_layer = self.rotary(config), self.rotary_of_layer(config)
        model = Decoder(config, layers, norm, rotary, of_layer, embedding_scale)
        super().__init__(config, model, logit_cap=logit_cap, logit_scale=logit_scale)

    def eps(self, config: ModelConfig) -> float:
        """Number that norms add to the variance."""
        return float(config.get("rms_norm_eps", self.norm_eps))

    def attention(self, config: ModelConfig, layer: int) -> AttentionConfig:
        """Attention of one layer."""
        shape = config.shape
        return AttentionConfig(
            AttentionSpec(
                layer=layer,
                num_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                scale=shape.head_dim**-0.5,
                window=shape.layer_windows[layer],
            ),
            shape.hidden_size,
            qkv_bias=shape.qkv_bias,
            output_bias=shape.output_bias,
            fused_qkv=self.fused,
            qk_norm=self.qk_norm,
            norm_eps=self.eps(config),
        )

    def mlp(self, config: ModelConfig, layer: int) -> GatedMLP | MoE:
        """MLP of one layer."""
        shape, act = config.shape, config.get(*self.act)
        return GatedMLP(
            shape.hidden_size, shape.intermediate_size, act, bias=shape.mlp_bias, fused=self.fused
        )

    def experts(self, config: ModelConfig, names: ExpertNames, *, normalise: bool) -> MoE:
        """Experts in place of an MLP; `normalise`: the chosen ones' weights sum to one."""
        shape = config.shape
        return MoE(
            MoEConfig(
                hidden_size=shape.hidden_size,
                intermediate_size=shape.moe_intermediate_size,
                num_experts=shape.num_experts,
                experts_per_token=shape.experts_per_token,
                act=config.get(*self.act),
                normalise=normalise,
                names=names,
            )
        )

    def rotary(self, config: ModelConfig) -> Sequence[RotaryConfig]:
        """Rotary embeddings that layers take theirs from."""
        return [config.rotary(self.rope_theta)]

    def rotary_of_layer(self, config: ModelConfig) -> Sequence[int]:
        """Which of the rotary embeddings each layer has."""
        return [0] * config.shape.num_layers
