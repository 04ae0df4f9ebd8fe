"""Times linear layers in 4 bits: each tuning of the kernel for few tokens, and the dequantised way.

    python benchmarks/gpu/int4_gemm.py --model DIR ... [--tokens 1,8,64] [--out F.json]

For the shapes of the models' layers: microseconds of the layer and a norm after it inside a CUDA
graph, for the tuning that kernels/int4/int4_linear.py takes, for the fastest three, and for the
dequantised matrix with cuBLAS; and TB/s of the weights, which are not in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from layer_formats import DEVICE
from skinny_gemm import ROTATED_BYTES, Norm, Shape, microseconds, shapes

from kvasir_engine.kernels.gemm.skinny import SkinnyTuning
from kvasir_engine.kernels.gemm.skinny_table import Form
from kvasir_engine.kernels.int4 import int4_linear
from kvasir_engine.kernels.int4.int4_dequantize import dequantized
from kvasir_engine.kernels.int4.int4_skinny import skinny_int4, skinny_int4_parts_of
from kvasir_engine.kernels.int4.int4_weights import UNIT, WORDS, Int4Weight, units_of
from kvasir_engine.kernels.silu_mul import silu_mul

GROUP = 128
CALLS = 40
BEST = 3
TILES = ((16, 1), (32, 1), (32, 2), (64, 1), (64, 2), (64, 4), (128, 4), (128, 8), (256, 8))
"""Outputs and warps."""
STAGES = (2, 3, 4)
PARTS = (1, 2, 4, 8)


def random_weight(outputs: int, inputs: int) -> Int4Weight:
    """Return a weight with zero points, as AWQ has."""
    low, high = -(1 << 31), (1 << 31) - 1
    shape = (outputs, units_of(inputs) * WORDS)
    words = torch.randint(low, high, shape, device=DEVICE, dtype=torch.int32)
    groups = (units_of(inputs), outputs)
    scales = torch.rand(groups, device=DEVICE).bfloat16() / 100
    zeros = torch.randint(0, 16, groups, device=DEVICE, dtype=torch.uint8)
    return Int4Weight(words, scales, zeros, GROUP)


def tunings(form: Form, inputs: int) -> Iterator[SkinnyTuning]:
    """Yield what is tried for a layer."""
    for (outputs, warps), stages in product(TILES, STAGES):
        for parts in PARTS if form == "parts" else (1,):
            if parts <= units_of(inputs) // 2:
                yield SkinnyTuning(outputs, UNIT, warps, stages, parts=parts)


def by_kernel(
    x: torch.Tensor, form: Form, tuning: SkinnyTuning, weight: Int4Weight
) -> torch.Tensor:
    """One launch of the kernel."""
    if form == "parts":
        return skinny_int4_parts_of(x, weight, None, tuning)
    return skinny_int4(x, weight, None, tuning, gate="silu" if form == "gated" else None)


def by_matrix(x: torch.Tensor, form: Form, weight: Int4Weight) -> torch.Tensor:
    """The same by the dequantised matrix."""
    out = torch.nn.functional.linear(x, dequantized(weight, x.shape[1]))
    return silu_mul(out) if form == "gated" else out


def compile_one(tokens: int, form: Form, tuning: SkinnyTuning) -> None:
    """Compile the kernel into Triton's cache on disk."""
    x = torch.randn(tokens, 4096, device=DEVICE, dtype=torch.bfloat16)
    try:
        by_kernel(x, form, tuning, random_weight(512, 4096))
        torch.cuda.synchronize()
    except Exception as error:  # too much shared memory
        print(tokens, tuning, repr(error)[:100], flush=True)


def compile_all(sizes: Sequence[int]) -> None:
    """All kernels, in parallel."""
    forms: tuple[Form, ...] = ("gated", "parts")
    wanted = {
        (tokens, form, replace(tuning, parts=min(tuning.parts, 2)))
        for tokens in sizes
        for form in forms
        for tuning in tunings(form, 4096)
        if tokens <= int4_linear.MAX_FEW_TOKENS
    }
    workers = max(1, (os.cpu_count() or 2) - 2)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(compile_one, *each) for each in sorted(wanted, key=str)]:
            done.result()


def own_tuning(tokens: int, outputs: int, inputs: int, form: Form) -> SkinnyTuning:
    """Return the tuning that the engine takes."""
    tuning = int4_linear.tuning_for(tokens, gated=form == "gated")
    if form != "parts":
        return tuning
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    parts = int4_linear.parts_for(outputs, inputs, tokens, multiprocessors)
    return replace(tuning, parts=parts)


def timed(shape: Shape, tokens: int) -> dict[str, Any]:
    """Return the times of a layer, in microseconds."""
    outputs, inputs, form = shape
    size = outputs * inputs // 2
    count = max(2, -(-ROTATED_BYTES // size))
    weights = [random_weight(outputs, inputs) for _ in range(count)]
    x = torch.randn(tokens, inputs, device=DEVICE, dtype=torch.bfloat16)
    norm = Norm(tokens, outputs, form)

    def time_of(run: Callable[[Int4Weight], torch.Tensor]) -> float:
        return round(microseconds(run, weights, CALLS, norm), 2)

    found: dict[str, Any] = {"shape": shape, "tokens": tokens}
    found["dequantised"] = time_of(partial(by_matrix, x, form))
    if tokens <= int4_linear.MAX_FEW_TOKENS:
        own = own_tuning(tokens, outputs, inputs, form)
        found["own"] = [time_of(partial(by_kernel, x, form, own)), *astuple(own)]
        ranked = sorted(
            [time_of(partial(by_kernel, x, form, tuning)), *astuple(tuning)]
            for tuning in tunings(form, inputs)
        )
        found["fastest"] = ranked[:BEST]
        found["tb_per_s"] = round(size / ranked[0][0] / 1e6, 2)
    return found


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, nargs="+", required=True)
    parser.add_argument("--tokens", default="1,8,16,32,64,128,256")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    wanted = {shape for model in options.model for shape in shapes(model) if shape[2] != "plain"}
    sizes = [int(each) for each in options.tokens.split(",")]
    compile_all(sizes)
    for shape, tokens in product(sorted(wanted), sizes):
        rows.append(timed(shape, tokens))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
