"""Times the two products of a layer's experts by shapes of tiles.

    python benchmarks/gpu/expert_gemm.py --model DIR [--formats bf16,fp8,int4] [--tokens 64,256]
        [--out F.json]

For each format and number of tokens, all choosing their experts at random: microseconds of each
product inside a CUDA graph, by the tiles that the engine takes and by the fastest others, and TB/s
of the chosen experts' weights. Four layers take turns, so that no cache holds their weights.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from int4_gemm import random_weight
from layer_formats import DEVICE

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kernels.expert_routing import make_expert_blocks
from kvasir_engine.kernels.grouped_gemm import GemmTuning, grouped_gemm, moe_tuning_for
from kvasir_engine.kernels.int4.int4_grouped_gemm import int4_grouped_gemm
from kvasir_engine.kernels.quantize_rows import quantize_rows

FORMATS = ("bf16", "fp8", "int4")
BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5}
"""Bytes of a weight."""
ITEMSIZE = {"bf16": 2, "fp8": 1, "int4": 2}
"""Bytes of an input."""
MEANS = (1, 20, 100, 999)
"""Assignments of an expert, of every shape of tiles that the engine takes."""
LAYERS, CALLS, BEST = 4, 12, 4
ROWS, OUTPUTS, WARPS, STAGES = (16, 32, 64, 128), (64, 128, 256), (4, 8), (3, 4)
INPUTS = {"bf16": (64, 128), "fp8": (128, 256), "int4": (128,)}
Run: TypeAlias = Callable[[int], torch.Tensor]
"""A product of this layer."""


@dataclass(frozen=True)
class Experts:
    """Sizes of a model's experts."""

    count: int
    top_k: int
    hidden: int
    inner: int

    @staticmethod
    def of(model: Path) -> Experts:
        """Read them from a config.json."""
        config = json.loads((model / "config.json").read_text())
        count = config.get("num_experts") or config["num_local_experts"]
        inner = config.get("moe_intermediate_size") or config["intermediate_size"]
        return Experts(count, config["num_experts_per_tok"], config["hidden_size"], inner)

    def matrix(self, *, gated: bool) -> tuple[int, int]:
        """Return outputs and inputs of one expert's matrix."""
        return (2 * self.inner, self.hidden) if gated else (self.hidden, self.inner)


def weights_of(kind: str, outputs: int, inputs: int, experts: int) -> Any:
    """Return one layer's random matrices."""
    if kind == "int4":
        return random_weight(experts * outputs, inputs)
    shape = (experts, outputs, inputs)
    plain = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    return plain if kind == "bf16" else plain.to(FP8)


def product_of(
    kind: str, sizes: Experts, layers: list[Any], chosen: torch.Tensor, *, gated: bool
) -> Callable[[GemmTuning], Run]:
    """Return what makes of a shape of tiles a product of one of `layers`."""
    inputs = sizes.matrix(gated=gated)[1]
    count = len(chosen) if gated else chosen.numel()
    x: Any = torch.randn(count, inputs, device=DEVICE, dtype=torch.bfloat16)
    options: dict[str, Any] = {"top_k": sizes.top_k, "gated": gated}
    if not gated:
        options["weights"] = torch.rand(chosen.shape, device=DEVICE)
    if kind == "fp8":
        x = quantize_rows(x)
        scales = torch.ones(sizes.count * sizes.matrix(gated=gated)[0], device=DEVICE)
        options |= {"scales": scales, "dtype": torch.bfloat16}

    def tiled(tuning: GemmTuning) -> Run:
        blocks = make_expert_blocks(chosen, sizes.count, tuning.rows)

        def run(layer: int) -> torch.Tensor:
            if kind == "int4":
                return int4_grouped_gemm(
                    x, layers[layer], blocks, tuning, experts=sizes.count, **options
                )
            return grouped_gemm(x, layers[layer], blocks, tuning, **options)

        return run

    return tiled


def tunings(kind: str) -> Iterator[GemmTuning]:
    """Yield what is tried."""
    for rows, outputs, inputs, warps, stages in product(ROWS, OUTPUTS, INPUTS[kind], WARPS, STAGES):
        if kind == "int4" and (outputs, stages) != (OUTPUTS[0], STAGES[0]):
            continue
        if rows * outputs <= 1024 * 4 * warps:
            yield GemmTuning(rows, outputs, inputs, warps, stages)


def compile_one(kind: str, tuning: GemmTuning, gated: bool) -> None:
    """Compile the kernel into Triton's cache on disk."""
    sizes = Experts(16, 2, 1024, 1024)
    layers = [weights_of(kind, *sizes.matrix(gated=gated), sizes.count)]
    chosen = torch.zeros(4, 2, device=DEVICE, dtype=torch.int32)
    try:
        product_of(kind, sizes, layers, chosen, gated=gated)(tuning)(0)
        torch.cuda.synchronize()
    except Exception as error:  # too much shared memory
        print(kind, tuning, repr(error)[:100], flush=True)


def compile_all(kinds: list[str]) -> None:
    """All kernels, in parallel."""
    wanted = [
        (kind, tuning, gated)
        for kind in kinds
        for tuning in {*tunings(kind), *(moe_tuning_for(mean, 1, ITEMSIZE[kind]) for mean in MEANS)}
        for gated in (True, False)
    ]
    workers = max(1, (os.cpu_count() or 2) - 2)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(compile_one, *each) for each in wanted]:
            done.result()


def microseconds(run: Run) -> float:
    """Device time of a product, among others in a CUDA graph."""
    run(0)
    torch.cuda.synchronize()
    graph, cuda = torch.cuda.CUDAGraph(), cast(Any, torch.cuda)  # torch leaves those untyped
    with torch.cuda.stream(cuda.Stream()):
        graph.capture_begin()
        for call in range(CALLS):
            run(call % LAYERS)
        graph.capture_end()
    torch.cuda.synchronize()
    graph.replay()
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return round(float(begin.elapsed_time(end)) / CALLS * 1e3, 1)


def timed(kind: str, sizes: Experts, tokens: int, *, gated: bool) -> dict[str, Any]:
    """Return the times of a product."""
    outputs, inputs = sizes.matrix(gated=gated)
    layers = [weights_of(kind, outputs, inputs, sizes.count) for _ in range(LAYERS)]
    scores = torch.rand(tokens, sizes.count, device=DEVICE)
    chosen = scores.topk(sizes.top_k).indices.int()
    tiled = product_of(kind, sizes, layers, chosen, gated=gated)
    mean = chosen.numel() / sizes.count
    own = moe_tuning_for(chosen.numel(), sizes.count, ITEMSIZE[kind])
    ranked = []
    for tuning in tunings(kind):
        if mean / 8 <= tuning.rows <= max(ROWS[0], 8 * mean):
            try:
                ranked.append([microseconds(tiled(tuning)), *astuple(tuning)])
            except Exception as error:  # too much shared memory
                print(kind, tuning, repr(error)[:100], flush=True)
    size = len(torch.unique(chosen)) * outputs * inputs * BYTES[kind]
    ranked.sort()
    return {
        "format": kind,
        "tokens": tokens,
        "product": "gate and up" if gated else "down",
        "own": [microseconds(tiled(own)), *astuple(own)],
        "fastest": ranked[:BEST],
        "tb_per_s": round(size / ranked[0][0] / 1e6, 2),
    }


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--tokens", default="1,8,64,256,1024,8192")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kinds, sizes, rows = options.formats.split(","), Experts.of(options.model), []
    compile_all(kinds)
    for kind, tokens in product(kinds, map(int, options.tokens.split(","))):
        for gated in (True, False):
            rows.append(timed(kind, sizes, tokens, gated=gated))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
