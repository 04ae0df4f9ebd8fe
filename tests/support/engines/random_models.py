"""Small random-weight models of every supported architecture, and a paged forward pass."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


WIDE_HEADS = {"head_dim": 16}


EXPERTS = {"num_experts_per_tok": 2}


LONG_FACTORS = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 6.0, 8.0],
}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("llama", {"num_key_value_heads": 4}),
    "llama3": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "llama31": (
        "llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", WIDE_HEADS),
    "qwen3_one_kv_head": (
        "qwen3",
        # An odd vocabulary does not divide over ranks.
        {**WIDE_HEADS, "num_key_value_heads": 1, "vocab_size": 161},
    ),
    "mistral": ("mistral", {**WIDE_HEADS, "sliding_window": 20}),
    "gemma2": (
        "gemma2",
        {
            **WIDE_HEADS,
            "num_hidden_layers": 4,
            "sliding_window": 20,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            **WIDE_HEADS,
            "num_hidden_layers": 7,
            "sliding_window": 18,
            "query_pre_attn_scalar": 12,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {
                    "rope_type": "linear",
                    "factor": 8.0,
                    "rope_theta": 1000000.0,
                },
            },
        },
    ),
    "phi3": ("phi3", {"sliding_window": 24}),
    "phi3_long": (
        "phi3",
        # HF uses the short factors up to 4 tokens, an engine serving longer ones never does.
        {"original_max_position_embeddings": 4, "rope_parameters": LONG_FACTORS},
    ),
    "mixtral": ("mixtral", {**EXPERTS, "num_local_experts": 4, "sliding_window": 20}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **EXPERTS,
            **WIDE_HEADS,
            "num_experts": 6,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "olmo2": ("olmo2", {}),
    "granite": (
        "granite",
        {
            "attention_bias": True,
            "tie_word_embeddings": True,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.1,
            "logits_scaling": 8.0,
        },
    ),
    "exaone4": (
        "exaone4",
        {**WIDE_HEADS, "num_hidden_layers": 4, "sliding_window": 20, "sliding_window_pattern": 2},
    ),
    "exaone4_full": (
        "exaone4",
        {**WIDE_HEADS, "sliding_window": None, "layer_types": ["full_attention"] * 3},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layer_interval": 2}),
    "internlm3": ("internlm3", {**WIDE_HEADS, "attention_bias": True, "mlp_bias": True}),
    "stablelm": ("stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "gpt_oss": (
        "gpt_oss",
        {
            **EXPERTS,
            "head_dim": 16,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_local_experts": 6,
            "sliding_window": 20,
            "swiglu_limit": 0.5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "starcoder2": ("starcoder2", {"sliding_window": 20}),
}
"""Model type and fields of each, beside SIZES."""


def save_hf_model(name: str, directory: Path) -> None:
    """Write the random model `name` (seeded by its name) as config.json and safetensors."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, fields = MODELS[name]
    config = AutoConfig.for_model(model_type, **{**SIZES, **fields})
    torch.manual_seed(sum(name.encode()))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name or parameter_name.endswith(("bias", "sinks")):
            # Norms initialised to a constant would hide a norm that is left out or misplaced.
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(directory)


class PagedModel:
    """Run a model over paged caches whose blocks are shuffled and first hold garbage."""

    def __init__(self, model: Any, *, num_blocks: int = 200, block_size: int = 16) -> None:
        import torch

        from kvasir_engine.kv.groups import group_layers

        self.model = model
        self.device = next(model.parameters()).device
        self.block_size = block_size
        self.specs = [spec.cache for spec in model.attention_specs]
        self.groups = group_layers(self.specs, block_size)
        self.caches = [
            (torch.randn(spec.shape(num_blocks, block_size)) * 50).to(
                self.device, next(model.parameters()).dtype
            )
            for spec in self.specs
        ]
        self.free = [list(range(1, num_blocks)) for _ in self.groups]
        for blocks in self.free:
            random.Random(0).shuffle(blocks)
        self.tables: dict[str, list[list[int]]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, new_tokens: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """Append tokens to sequences in one forward pass: logits [tokens, vocab] of each."""
        import torch

        from kvasir_engine.attention.backends import make_backends
        from kvasir_engine.attention.base import ForwardContext, forward_context

        order = sorted(new_tokens, key=lambda name: (len(new_tokens[name]) > 1, name))
        decodes = sum(len(new_tokens[name]) == 1 for name in order)
        starts = {name: self.lengths.get(name, 0) for name in order}
        for name in order:
            self._extend(name, starts[name] + len(new_tokens[name]))
        with self.device:
            batches = [self._batch(g, order, starts, decodes) for g in range(len(self.groups))]
        group_of = {layer: g for g, spec in enumerate(self.groups) for layer in spec.layers}
        context = ForwardContext(
            backends=make_backends(self.specs, self.device),
            caches=self.caches,
            batches=batches,
            group_of_layer=[group_of[layer] for layer in range(len(self.caches))],
        )
        tokens = [token for name in order for token in new_tokens[name]]
        ranges = [torch.arange(starts[name], self.lengths[name]) for name in order]
        with torch.inference_mode(), forward_context(context):
            positions = torch.cat(ranges).to(self.device)
            hidden = self.model(torch.tensor(tokens, device=self.device), positions)
            logits = self.model.logits(hidden)
        parts = logits.cpu().split([len(r) for r in ranges])
        return dict(zip(order, parts, strict=True))

    def _extend(self, name: str, length: int) -> None:
        tables = self.tables.setdefault(name, [[] for _ in self.groups])
        for table, free in zip(tables, self.free, strict=True):
            while len(table) * self.block_size < length:
                table.append(free.pop())
        self.lengths[name] = length

    def _batch(self, g: int, order: list[str], starts: dict[str, int], decodes: int) -> Any:
        import torch

        from kvasir_engine.attention.base import AttentionBatch

        size, window = self.block_size, self.groups[g].window
        tables = {}
        for name in order:
            tables[name] = list(self.tables[name][g])
            outside = 0 if window is None else max(0, starts[name] - window + 1) // size
            tables[name][:outside] = [0] * outside
        width = max(map(len, tables.values()))
        lengths = [self.lengths[name] for name in order]
        new = [self.lengths[name] - starts[name] for name in order]
        slots = [
            tables[name][p // size] * size + p % size
            for name in order
            for p in range(starts[name], self.lengths[name])
        ]
        padded = [tables[name] + [0] * (width - len(tables[name])) for name in order]
        return AttentionBatch(
            block_table=torch.tensor(padded, dtype=torch.int32),
            slot_mapping=torch.tensor(slots),
            query_start=torch.tensor([0, *new]).cumsum(0).int(),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            num_decodes=decodes,
            max_seq_len=max(lengths),
            query_lens_cpu=new,
            seq_lens_cpu=lengths,
        )


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def compiled(kernel, constants, types, capability, **options):
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in constants else types.get(name, "*i32") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name.endswith("_ptr")},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
"""
"""What programs find: a kernel for a compute capability; arguments without a type are *i32."""
