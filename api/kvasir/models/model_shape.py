"""ModelShape: the sizes of a decoder, and what follows from them: parameters and KV bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvasir.models.quantization import Quantization

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of one element, under the names a config.json or a flag uses."""


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Numbers of parameters that one rank holds, by what holds them."""

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int
    """The output projection; 0 when it is tied to the embedding."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.attention + self.mlp + self.norms + self.head


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes in a Hugging Face config.json, with each family's defaults filled in."""

    architecture: str
    """First name under `architectures`, such as "LlamaForCausalLM"; empty when it names none."""
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    layer_windows: tuple[int | None, ...]
    """Sliding window of each layer in tokens; None attends to everything before."""
    dtype: str
    tie_word_embeddings: bool
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    num_sparse_layers: int = 0
    """Layers whose MLP is a mixture of experts; the others have a dense one."""
    quantization: Quantization | None = None
    """Format of its linear layers' weights; None for plain weights."""
    eos_token_ids: tuple[int, ...] = ()
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    gated_mlp: bool = True
    qk_norm: Literal["none", "head", "full"] = "none"
    """Weights of the norm on queries and keys: head_dim ("head") or one a channel ("full")."""
    norms_per_layer: int = 2
    norm_bias: bool = False
    expert_bias: bool = False
    """Routers and experts have biases."""
    attention_sinks: bool = False
    """Each head has a sink, one number."""
    parameters_exact: bool = True
    """False for a family whose layers are not known here: counts are then of a Llama's layers."""

    @property
    def quantization_method(self) -> str | None:
        """Name of the quantisation, such as "fp8" or "awq"; None for plain weights."""
        return None if self.quantization is None else self.quantization.method

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return self.parameters().total

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token passes through; fewer than all in a mixture of experts."""
        idle = self.num_experts - self.experts_per_token
        return self.num_parameters - self.num_sparse_layers * idle * self._expert_size

    def parameters(self, tensor_parallel: int = 1) -> ParameterCount:
        """Parameters on each of `tensor_parallel` ranks; norms, routers and row biases are copied.

        Raises ValueError when the heads cannot be divided over that many ranks.
        """
        tp = tensor_parallel
        heads, kv_heads = self._heads_per_rank(tp)
        table = -(-self.vocab_size // tp) * self.hidden_size
        return ParameterCount(
            embedding=table,
            attention=self.num_layers * self._attention_size(heads, kv_heads),
            mlp=self._mlp_parameters(tp),
            norms=(self.num_layers * self.norms_per_layer + 1) * self._norm_size,
            head=0 if self.tie_word_embeddings else table,
        )

    def kv_heads_per_rank(self, tensor_parallel: int = 1) -> int:
        """KV heads on each rank: an equal share, or one copy when there are more ranks than heads.

        Raises ValueError when the heads cannot be divided over that many ranks.
        """
        return self._heads_per_rank(tensor_parallel)[1]

    def kv_bytes_per_token(self, dtype: str | None = None, tensor_parallel: int = 1) -> int:
        """Bytes of keys and values of one token over all layers, on each rank.

        `dtype` is the KV cache's, by default the model's.
        """
        return self.num_layers * self.kv_bytes_per_token_and_layer(dtype, tensor_parallel)

    def kv_bytes_per_token_and_layer(
        self, dtype: str | None = None, tensor_parallel: int = 1
    ) -> int:
        """Bytes of one token's key and value in one layer, on each rank."""
        kv_heads = self.kv_heads_per_rank(tensor_parallel)
        return 2 * kv_heads * self.head_dim * DTYPE_BYTES[dtype or self.dtype]

    def _heads_per_rank(self, tp: int) -> tuple[int, int]:
        if tp < 1 or self.num_heads % tp:
            raise ValueError(
                f"tensor parallel size {tp} does not divide the {self.num_heads} attention heads"
                f" of {self.model_type}; take a divisor of {self.num_heads}"
            )
        if self.num_kv_heads % tp and tp % self.num_kv_heads:
            raise ValueError(
                f"tensor parallel size {tp} and the {self.num_kv_heads} KV heads of"
                f" {self.model_type} do not divide one another; take a divisor or a multiple"
            )
        return self.num_heads // tp, max(1, self.num_kv_heads // tp)

    def _attention_size(self, heads: int, kv_heads: int) -> int:
        projected = (heads + 2 * kv_heads) * self.head_dim
        size = projected * self.hidden_size + heads * self.head_dim * self.hidden_size
        size += projected if self.qkv_bias else 0
        size += self.hidden_size if self.output_bias else 0
        size += heads if self.attention_sinks else 0
        if self.qk_norm == "head":
            size += 2 * self.head_dim
        elif self.qk_norm == "full":
            size += (heads + kv_heads) * self.head_dim
        return size

    def _mlp_parameters(self, tp: int) -> int:
        dense = self.num_layers - self.num_sparse_layers
        router = (self.hidden_size + self.expert_bias) * self.num_experts
        matrices = 3 * self.hidden_size * self.moe_intermediate_size
        experts = -(-self.num_experts * matrices // tp)
        if self.expert_bias:
            inner = -(-2 * self.moe_intermediate_size // tp)
            experts += self.num_experts * (inner + self.hidden_size)
        return dense * self._dense_mlp_size(tp) + self.num_sparse_layers * (router + experts)

    def _dense_mlp_size(self, tp: int) -> int:
        width, ups = -(-self.intermediate_size // tp), 2 if self.gated_mlp else 1
        bias = ups * width + self.hidden_size if self.mlp_bias else 0
        return (ups + 1) * width * self.hidden_size + bias

    @property
    def _expert_size(self) -> int:
        matrices = 3 * self.hidden_size * self.moe_intermediate_size
        bias = 2 * self.moe_intermediate_size + self.hidden_size if self.expert_bias else 0
        return matrices + bias

    @property
    def _norm_size(self) -> int:
        return self.hidden_size * (2 if self.norm_bias else 1)
