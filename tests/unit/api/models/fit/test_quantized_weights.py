"""Sizes of quantised weights, against those of the tensors that checkpoints have."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
from support.llama_config import LLAMA_8B

from kvasir.models.fit.estimate import weight_bytes
from kvasir.models.fit.quantized_weights import quantized_linears, stored_bytes
from kvasir.models.hf_config import parse_shape
from kvasir.models.model_shape import ModelShape
from kvasir.models.quantization import Activations, Numbers, Packing, Quantization, Scales

FP8, INT4, MXFP4 = Numbers.FP8, Numbers.INT4, Numbers.MXFP4
AWQ, GPTQ, OURS = Packing.AWQ, Packing.GPTQ, Packing.COMPRESSED_TENSORS
OUT, IN = 192, 384
NUMBERS = (OUT * IN, 1)


@pytest.mark.parametrize(
    ("quantization", "tensors"),
    [
        (Quantization("fp8", FP8, Scales.TENSOR), [NUMBERS, (1, 4)]),
        (Quantization("fp8", FP8, Scales.TENSOR, Activations.STATIC), [NUMBERS, (1, 4), (1, 4)]),
        (Quantization("fp8", FP8, Scales.CHANNEL), [NUMBERS, (OUT, 4)]),
        (Quantization("fp8", FP8, Scales.BLOCK, block=(128, 128)), [NUMBERS, (2 * 3, 4)]),
        (
            # qweight, scales, qzeros
            Quantization("awq", INT4, Scales.GROUP, group=128, symmetric=False, packing=AWQ),
            [(IN * OUT // 8, 4), (3 * OUT, 2), (3 * OUT // 8, 4)],
        ),
        (
            # qweight, scales, qzeros, g_idx
            Quantization("gptq", INT4, Scales.GROUP, group=128, packing=GPTQ),
            [(IN // 8 * OUT, 4), (3 * OUT, 2), (3 * OUT // 8, 4), (IN, 4)],
        ),
        (
            # weight_packed, weight_scale
            Quantization("compressed-tensors", INT4, Scales.GROUP, group=128, packing=OURS),
            [(OUT * IN // 8, 4), (OUT * 3, 2)],
        ),
        (
            Quantization("compressed-tensors", INT4, Scales.CHANNEL, packing=OURS),
            [(OUT * IN // 8, 4), (OUT, 2)],
        ),
        (
            # weight_packed, weight_scale, weight_zero_point, weight_g_idx
            Quantization(
                "compressed-tensors",
                INT4,
                Scales.GROUP,
                group=128,
                symmetric=False,
                packing=OURS,
                reordered=True,
            ),
            [(OUT * IN // 8, 4), (OUT * 3, 2), (OUT // 8 * 3, 4), (IN, 4)],
        ),
        (
            # blocks, scales
            Quantization("mxfp4", MXFP4, Scales.GROUP, group=32, packing=Packing.MXFP4),
            [(OUT * IN // 32 * 16, 1), (OUT * IN // 32, 1)],
        ),
    ],
)
def test_a_weight_takes_what_its_tensors_take(
    quantization: Quantization, tensors: list[tuple[int, int]]
) -> None:
    assert stored_bytes(quantization, OUT, IN) == sum(map(prod, tensors))


def llama(quantization: Quantization | None, **fields: Any) -> ModelShape:
    return replace(parse_shape(LLAMA_8B | fields), quantization=quantization)


CHANNELS = Quantization("fp8", FP8, Scales.CHANNEL, ignored=("lm_head",))


def test_embedding_head_and_norms_stay_plain() -> None:
    shape = llama(CHANNELS)
    count = shape.parameters()
    outputs = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    assert quantized_linears(shape) == (
        count.attention + count.mlp,
        count.attention + count.mlp + 4 * outputs,
    )
    plain = 2 * (count.embedding + count.head + count.norms)
    assert weight_bytes(shape) == plain + quantized_linears(shape)[1]
    assert weight_bytes(shape, dtype="float32") == 2 * plain + quantized_linears(shape)[1]
    assert quantized_linears(llama(None)) == (0, 0)


def test_biases_stay_plain() -> None:
    shape = llama(CHANNELS, attention_bias=True, mlp_bias=True)
    assert quantized_linears(shape) == quantized_linears(llama(CHANNELS))


@pytest.mark.parametrize("size", [2, 8, 16])
def test_ranks_share_the_weights(size: int) -> None:
    shape = llama(CHANNELS)
    count = shape.parameters(size)
    assert quantized_linears(shape, size)[0] == count.attention + count.mlp


@pytest.mark.parametrize(
    ("ignored", "quantised"),
    [
        (("re:.*self_attn.*",), 32 * 3 * 4096 * 14336),
        (("mlp", "k_proj", "v_proj"), 32 * 2 * 4096 * 4096),
        ((r"re:model\.layers\.(0|31)\.", "self_attn"), 30 * 3 * 4096 * 14336),
    ],
)
def test_modules_that_the_checkpoint_leaves_plain(ignored: tuple[str, ...], quantised: int) -> None:
    assert quantized_linears(llama(replace(CHANNELS, ignored=ignored)))[0] == quantised


def test_of_experts_routers_stay_plain() -> None:
    fields = {
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
        "mlp_only_layers": [0, 1],
    }
    shape = llama(CHANNELS, **fields)
    count = shape.parameters()
    # Beside the routers, the norms of queries and keys
    plain = 30 * 8 * 4096 + 32 * 2 * 128
    assert quantized_linears(shape)[0] == count.attention + count.mlp - plain
    experts = Quantization(
        "mxfp4", MXFP4, Scales.GROUP, group=32, ignored=(r"re:(?!.*\bexperts\b)",)
    )
    assert quantized_linears(replace(shape, quantization=experts)) == (
        30 * 8 * 3 * 4096 * 512,
        30 * 8 * 3 * 4096 * 512 * 17 // 32,
    )


@pytest.mark.parametrize(("ranks", "channels"), [(1, 2880), (2, 1440), (4, 736), (8, 384)])
def test_ranks_hold_whole_groups_of_mxfp4(ranks: int, channels: int) -> None:
    """And zeros beside their share, where it ends within one."""
    fields = {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "moe_intermediate_size": 2880,
        "num_experts": 32,
        "num_experts_per_tok": 4,
    }
    experts = Quantization(
        "mxfp4", MXFP4, Scales.GROUP, group=32, ignored=(r"re:(?!.*\bexperts\b)",)
    )
    shape = llama(experts, **fields)
    matrices = 32 * 32 * 3 * 2880
    assert quantized_linears(shape, ranks) == (
        matrices * 2880 // ranks,
        matrices * channels * 17 // 32,
    )
