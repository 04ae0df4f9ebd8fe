"""Autotune a model's GEMMs for the token counts its steps have."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import nn

from kvasir_engine.device.capability import kernels_run_on
from kvasir_engine.layers.embedding import VocabParallelEmbedding
from kvasir_engine.layers.linear import ColumnParallelLinear, RowParallelLinear
from kvasir_engine.models.causal_lm import CausalLM
from kvasir_engine.runner.graphs.full import decode_sizes

log = logging.getLogger(__name__)

_HALF_DTYPES = (torch.float16, torch.bfloat16)
BUDGET_SECONDS = 4.0
"""Time that a start spends on timing algorithms; one that is under way is finished."""
MIXED_STEP_TOKENS = (
    320,
    384,
    448,
    512,
    640,
    768,
    896,
    1024,
    1280,
    1536,
    1792,
    2048,
    3072,
    4096,
    6144,
    8192,
)
"""Tokens of steps that do not only decode."""

DEQUANTIZED = 2
"""Matrices of a shape of which one is not in the GPU's cache when it is read."""


def autotune_gemms(model: CausalLM, device: torch.device, max_rows: int, max_tokens: int) -> None:
    """Choose an algorithm for each shape of the model's layers; the head only decodes."""
    if not isinstance(model, nn.Module) or not kernels_run_on(device):
        return
    # Not at the top: they import triton, which the CPU does not need.
    from kvasir_engine.kernels.gemm.tuned_gemm import MIN_TUNED_TOKENS, tuned_gemms_on
    from kvasir_engine.kernels.int4.int4_linear import MAX_FEW_TOKENS

    gemms = tuned_gemms_on(device)
    if gemms is None:
        return
    rows = [size for size in decode_sizes(max_rows) if size >= MIN_TUNED_TOKENS]
    large = [size for size in MIXED_STEP_TOKENS if MIN_TUNED_TOKENS <= size <= max_tokens]
    wanted = [
        (weights, sorted({*rows, *large}))
        for weights in by_shape(model, ColumnParallelLinear, RowParallelLinear)
    ]
    wanted += [
        (weights, [size for size in sorted({*rows, *large}) if size > MAX_FEW_TOKENS])
        for weights in dequantized_by_shape(model)
    ]
    # The head sees the last token of a row only.
    wanted += [(weights, rows) for weights in by_shape(model, VocabParallelEmbedding)]
    deadline = time.monotonic() + BUDGET_SECONDS
    with torch.inference_mode():
        for weights, sizes in wanted:
            gemms.tune(weights, spread(sizes), deadline)
        left = sum(gemms.tune(weights, sizes, deadline) for weights, sizes in wanted)
    if left:
        log.info("%d GEMM sizes are left for the next start to time.", left)
    gemms.save()


def spread(sizes: Sequence[int]) -> list[int]:
    """Return the sizes that stand for those below them, about one in each half of an octave; the
    largest is among them."""
    kept: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not kept or size * 1.4 <= kept[-1]:
            kept.append(size)
    return kept


def by_shape(model: nn.Module, *kinds: type[nn.Module]) -> list[list[torch.Tensor]]:
    """Weights of modules of these kinds, in half precision and without a bias, by shape."""
    found: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
    for module in model.modules():
        if isinstance(module, kinds) and getattr(module, "bias", None) is None:
            weight = module.get_parameter("weight")
            if weight.dtype in _HALF_DTYPES:
                found[weight.shape].append(weight)
    return list(found.values())


def dequantized_by_shape(model: nn.Module) -> list[list[torch.Tensor]]:
    """Two matrices of each shape that layers with weights in 4 bits are dequantised to, without a
    bias and in half precision: more would take memory that is not the weights'."""
    # Not at the top: it imports triton, which the CPU does not need.
    from kvasir_engine.kernels.int4.int4_dequantize import dequantized

    found: dict[tuple[int, int], list[torch.Tensor]] = defaultdict(list)
    for module in model.modules():
        if not isinstance(module, (ColumnParallelLinear, RowParallelLinear)):
            continue
        weight = module.method.int4_weight(module)
        if weight is None or module.bias is not None or module.dtype not in _HALF_DTYPES:
            continue
        of_shape = found[module.local_outputs, module.local_inputs]
        if len(of_shape) < DEQUANTIZED:
            of_shape.append(dequantized(weight, module.local_inputs))
    return list(found.values())
