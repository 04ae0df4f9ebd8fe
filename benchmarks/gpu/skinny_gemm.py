"""Chooses, for each linear layer of a few tokens, between cuBLAS and the skinny kernel, by time.

    python benchmarks/gpu/skinny_gemm.py --model DIR ... [--out F.json] [--table F.json]

For the shapes of the models' layers, without those that are like another, and 1 to 64 tokens:
microseconds of the layer and a norm after it inside a CUDA graph, and TB/s of weights, which are
not in the cache.
--table writes what kernels/gemm/skinny_table.py reads; shapes that --out has are not timed again.
`gemm_tables.py` makes all tables of a GPU at once.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from kvasir_engine.kernels.add_rms_norm import add_rms_norm
from kvasir_engine.kernels.gemm.skinny import SkinnyTuning, fits, skinny_linear
from kvasir_engine.kernels.gemm.skinny_table import distance
from kvasir_engine.kernels.gemm.tuned_gemm import MIN_TUNED_TOKENS, tuned_gemm, tuned_gemms_on
from kvasir_engine.kernels.silu_mul import silu_mul

DEVICE = torch.device("cuda")
TOKENS = (1, 8, 16, 32, 64)
Shape = tuple[int, int, bool]
"""Outputs, inputs, gated."""
ROTATED_BYTES = 400 << 20
"""Weights that are read in turn: several times the cache."""
GAIN = 0.99
"""Maximum share of cuBLAS's time at which the kernel is chosen."""
AHEAD, OTHERS_AHEAD = 512, (0, 1024)
"""Inputs asked for ahead: at first, and with the best that were found so."""
BEST = 4
TUNED_WEIGHTS = 12
"""Weights on which cuBLASLt's algorithms are timed."""
SIMILAR = 0.25
"""A shape that is as near as this to another, as skinny_table.py has it, is not measured."""
BY_PRODUCT = [
    *[SkinnyTuning(16, k, w, s) for k, w, s in ((128, 1, 4), (256, 1, 4), (256, 2, 4))],
    *[SkinnyTuning(16, k, w, s) for k, w, s in ((512, 2, 3), (256, 4, 3), (128, 4, 6))],
    *[SkinnyTuning(32, k, w, s) for k, w, s in ((128, 2, 4), (256, 2, 3), (256, 4, 3))],
    *[SkinnyTuning(64, k, w, s) for k, w, s in ((64, 4, 4), (128, 4, 4), (128, 4, 3))],
    *[SkinnyTuning(128, k, w, s) for k, w, s in ((64, 4, 4), (128, 4, 3))],
    *[SkinnyTuning(32, k, w, s) for k, w, s in ((256, 4, 4), (512, 4, 3))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((64, 256, 4, 3), (16, 256, 2, 3))],
]
BY_SUMS = [
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((4, 1024, 4, 2), (8, 512, 4, 2))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((16, 256, 4, 2), (16, 512, 8, 2))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((8, 512, 4, 4), (4, 512, 2, 4))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((2, 1024, 2, 4), (16, 256, 4, 4))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((8, 1024, 8, 2), (4, 1024, 4, 1))],
    SkinnyTuning(8, 256, 2, 4),
]


def rows_of(tokens: int) -> int:
    """Rows that the kernel is compiled for."""
    return 1 if tokens == 1 else max(16, tokens)


def tunings(tokens: int) -> list[SkinnyTuning]:
    """Return the tunings to try for that number of tokens."""
    return BY_SUMS + BY_PRODUCT if tokens == 1 else BY_PRODUCT


def ahead(tried: Sequence[SkinnyTuning], *inputs: int) -> list[SkinnyTuning]:
    """Return each tuning with each number of inputs asked for ahead."""
    return [replace(each, prefetched=many) for each in tried for many in inputs]


def shapes(model: Path) -> Iterator[Shape]:
    """Shapes of a model's layers, experts apart."""
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config", config)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    yield (heads + 2 * kv_heads) * dim, hidden, False
    yield hidden, heads * dim, False
    if "num_experts" in config:
        yield config["num_experts"], hidden, False
    else:
        yield 2 * config["intermediate_size"], hidden, True
        yield hidden, config["intermediate_size"], False
    yield config["vocab_size"], hidden, False


def compile_one(tokens: int, tuning: SkinnyTuning, gated: bool) -> None:
    """Compile the kernel into Triton's cache on disk."""
    x = torch.zeros(tokens, 4096, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.zeros(256, 4096, device=DEVICE, dtype=torch.bfloat16)
    try:
        skinny_linear(x, weight, None, tuning, gate="silu" if gated else None)
        torch.cuda.synchronize()
    except Exception as error:  # too much shared memory
        print(tokens, tuning, repr(error)[:100], flush=True)


def compile_all() -> None:
    """All kernels, in parallel."""
    wanted = {
        (rows_of(tokens), tuning, gated)
        for tokens in TOKENS
        for tuning in ahead(tunings(tokens), AHEAD, *OTHERS_AHEAD)
        for gated in (False, True)
    }
    with ProcessPoolExecutor(
        max(1, (os.cpu_count() or 2) - 2), mp_context=get_context("spawn")
    ) as pool:
        for done in [pool.submit(compile_one, *each) for each in sorted(wanted, key=str)]:
            done.result()


def microseconds(
    run: Callable[..., Any], weights: list[torch.Tensor], calls: int, tokens: int
) -> float:
    """Device time of a call and the norm after it, among `calls` in a CUDA graph, as in a model;
    `run` takes a weight."""
    between = torch.zeros(tokens, 4096, device=DEVICE, dtype=torch.bfloat16)
    scales = torch.ones(4096, device=DEVICE, dtype=torch.bfloat16)
    add_rms_norm(between, between, scales, 1e-5)
    run(weight=weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # torch.cuda.graph() would also collect garbage, each time.
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        for call in range(calls):
            run(weight=weights[call % len(weights)])
            add_rms_norm(between, between, scales, 1e-5)
        graph.capture_end()
    torch.cuda.synchronize()
    graph.replay()
    times = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls * 1e3)
    return float(sorted(times)[1])


def by_cublas(x: torch.Tensor, weight: torch.Tensor, *, gated: bool) -> torch.Tensor:
    """The same layer through cuBLAS, by the algorithm that the engine chose, if any."""
    out = tuned_gemm(x, weight)
    out = torch.nn.functional.linear(x, weight) if out is None else out
    return silu_mul(out) if gated else out


class Layer:
    """One layer's weights, several times, since they are not to be in the cache."""

    def __init__(self, outputs: int, inputs: int, gated: bool) -> None:
        self.shape = outputs, inputs, gated
        self.size = outputs * inputs * 2
        self._weights = [
            torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16)
            for _ in range(max(2, -(-ROTATED_BYTES // self.size)))
        ]

    def microseconds(self, run: Callable[..., Any], tokens: int) -> float:
        """Time of `run`, which takes a weight."""
        return microseconds(run, self._weights, max(len(self._weights), 8), tokens)

    def cublas_microseconds(self, x: torch.Tensor) -> float:
        """Time without the kernel, by the algorithm that is fastest for so many tokens."""
        gemms, tokens = tuned_gemms_on(DEVICE), len(x)
        if gemms is not None and tokens >= MIN_TUNED_TOKENS:
            gemms.tune(self._weights[:TUNED_WEIGHTS], [tokens])
        return self.microseconds(partial(by_cublas, x, gated=self.shape[2]), tokens)

    def ranked(self, x: torch.Tensor) -> list[tuple[float, SkinnyTuning]]:
        """Return microseconds by tuning, the fastest first."""
        tried = tunings(len(x))
        found = self._timed(x, ahead(tried, AHEAD))
        best = [tuning for _, tuning in sorted(found, key=_time)[:BEST]]
        return sorted([*found, *self._timed(x, ahead(best, *OTHERS_AHEAD))], key=_time)

    def _timed(
        self, x: torch.Tensor, tried: Sequence[SkinnyTuning]
    ) -> list[tuple[float, SkinnyTuning]]:
        outputs, inputs, gated = self.shape
        found = []
        for tuning in tried:
            if not fits(outputs // (2 if gated else 1), inputs, tuning):
                continue
            run = partial(
                skinny_linear, x, bias=None, tuning=tuning, gate="silu" if gated else None
            )
            try:
                found.append((self.microseconds(run, len(x)), tuning))
            except Exception as error:
                print(tuning, repr(error)[:100], flush=True)
        return found


def _time(found: tuple[float, SkinnyTuning]) -> float:
    return found[0]


def measure(outputs: int, inputs: int, gated: bool) -> Iterator[dict[str, Any]]:
    """A result for each number of tokens."""
    layer = Layer(outputs, inputs, gated)
    for tokens in TOKENS:
        x = torch.randn(tokens, inputs, device=DEVICE, dtype=torch.bfloat16)
        found = layer.ranked(x)
        if not found:
            continue
        cublas = layer.cublas_microseconds(x)
        best, tuning = found[0]
        yield {
            "outputs": outputs,
            "inputs": inputs,
            "gated": gated,
            "tokens": tokens,
            "cublas_us": round(cublas, 1),
            "us": round(best, 1),
            "TB_s": round(layer.size / best / 1e6, 2),
            "tuning": astuple(tuning),
            "next": [f"{us:.1f} {astuple(each)}" for us, each in found[1:4]],
            "worst": f"{found[-1][0]:.1f} {astuple(found[-1][1])}",
        }


def unlike(shapes: Iterator[Shape], measured: Sequence[Shape]) -> list[Shape]:
    """Return the shapes that are like none that is measured, or comes before."""
    kept = list(measured)
    for shape in shapes:
        gated = shape[2]
        if all(distance(shape, each) >= SIMILAR for each in kept if each[2] == gated):
            kept.append(shape)
    return kept[len(measured) :]


def measure_all(models: Sequence[Path], out: Path | None) -> list[dict[str, Any]]:
    """Return the results of the models' layers; those that `out` has are kept, others are added to
    it."""
    results: list[dict[str, Any]] = []
    if out is not None and out.is_file():
        results = json.loads(out.read_text())
    done = {(each["outputs"], each["inputs"], each["gated"]): None for each in results}
    wanted = unlike((shape for model in models for shape in shapes(model)), list(done))
    if wanted:
        compile_all()
    with torch.inference_mode():
        for shape in wanted:
            of_shape = list(measure(*shape))
            results += of_shape
            print("\n".join(map(json.dumps, of_shape)), flush=True)
            if out is not None:
                out.write_text(json.dumps(results, indent=1))
            torch.cuda.empty_cache()
    return results


def write_table(results: Sequence[dict[str, Any]], table: Path) -> None:
    """Write the tunings; none where cuBLAS was faster."""
    lines = []
    for each in results:
        gains = each["us"] < GAIN * each["cublas_us"]
        key = [each["outputs"], each["inputs"], each["gated"], each["tokens"]]
        lines.append(json.dumps([*key, *(each["tuning"] if gains else ())]))
    table.write_text("[" + ",\n ".join(lines) + "]\n")


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    results = measure_all(options.model, options.out)
    if options.table:
        write_table(results, options.table)


if __name__ == "__main__":
    main()
