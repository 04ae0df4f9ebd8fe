"""Scales of a float8 KV cache: a checkpoint's, or of what keys and values come to in a first step.

Float8 has as many digits for numbers of 0.02 as of 448, so that a scale only has to be near: what
is found leaves room for numbers twice to four times as large, and is a power of two, so that
replicas and ranks find the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kvasir_engine.device.collectives import all_reduce_min
from kvasir_engine.device.float8 import FP8, FP8_MAX
from kvasir_engine.kv.cache_spec import KVScales
from kvasir_engine.loader.kv_scales import read_kv_scales
from kvasir_engine.runner.torch_runner import TorchRunner
from kvasir_engine.settings import EngineSettings
from kvasir_engine.startup.warmup import largest_step

log = logging.getLogger(__name__)

ROWS, TOKENS = 4, 2048
"""Prompts of random tokens that keys and values are looked at of, and tokens of all of them."""
ROOM = 2.0
WIDE = 256.0
"""Scale of a second look, where the first one found float8's largest number."""


def set_kv_scales(
    runner: TorchRunner, settings: EngineSettings, model_dir: Path, num_blocks: Sequence[int]
) -> None:
    """Have float8 caches of `num_blocks` blocks a group, which nobody has read of yet, scaled by
    the checkpoint's numbers, or by what a step finds."""
    if runner.caches[0].dtype != FP8:
        return
    layers = len(runner.caches)
    stored = settings.load_format in ("auto", "safetensors")
    scales = read_kv_scales(model_dir, layers) if stored else None
    if scales is None:
        scales = found_scales(runner, settings, min(num_blocks))
        log.info("KV scales are of keys and values of %d random tokens.", TOKENS)
    runner.use_kv_scales(scales)


def found_scales(runner: TorchRunner, settings: EngineSettings, num_blocks: int) -> list[KVScales]:
    """Return each layer's scales by the largest keys and values of prompts of random tokens; what
    stands in blocks and rows then means nothing."""
    block = runner.groups[0].block_size
    tokens = min(TOKENS, settings.scheduler.max_num_batched_tokens)
    rows = min(ROWS, settings.scheduler.max_num_seqs)
    # Each row has blocks of its own, and the null block is nobody's.
    length = min(tokens // rows, runner.max_model_len - 1, (num_blocks - 1) // rows * block)
    if length < 1:
        return [KVScales()] * len(runner.caches)
    plan = largest_step(length * rows, rows, runner.max_model_len, runner.groups)
    random = np.random.default_rng(0)
    inits = [
        replace(init, token_ids=random.integers(runner.vocab_size, size=length, dtype=np.int32))
        for init in plan.inits
    ]
    used = 1 + rows * -(-length // block)
    for scale in (1.0, WIDE):
        runner.use_kv_scales([KVScales(scale, scale)] * len(runner.caches))
        runner.forward(replace(plan, inits=inits))
        runner.sample(plan).wait()
        largest = [_largest(cache[:, :used]) for cache in runner.caches]
        if max(map(max, largest)) < FP8_MAX:
            break
    # The ranks' heads share a scale.
    exponents = all_reduce_min([-_exponent(scale * each) for pair in largest for each in pair])
    return [
        KVScales(2.0 ** -exponents[at], 2.0 ** -exponents[at + 1])
        for at in range(0, len(exponents), 2)
    ]


def _largest(cache: torch.Tensor) -> list[float]:
    """Return the largest key and value by size."""
    # Float8's bits but the sign are ordered as its numbers are.
    largest = (cache.view(torch.uint8) & 0x7F).flatten(1).amax(1)
    numbers: list[float] = largest.view(FP8).float().tolist()
    return numbers


def _exponent(largest: float) -> int:
    """Return that of the smallest power of two that makes room for numbers of this size."""
    return math.ceil(math.log2(ROOM * largest / FP8_MAX)) if largest else 0
