"""Chooses, for each linear layer of a few tokens, between cuBLAS and the skinny kernel, by time.

    python benchmarks/gpu/skinny_gemm.py --model DIR ... [--format fp8] [--out F.json]
        [--table F.json]

For the shapes of the models' layers, without those that are like another, and 1 to 64 tokens:
microseconds of the layer and a norm after it inside a CUDA graph, and TB/s of weights, which are
not in the cache. Layers before a norm are measured a second time as parts of sums, which the norm
forms.
--table writes what kernels/gemm/skinny_table.py reads; shapes that --out has are not timed again.
`gemm_tables.py` makes all tables of a GPU at once.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from layer_formats import DEVICE, FORMATS, Run
from skinny_tunings import AHEAD, MOST_PROGRAMS, OTHERS_AHEAD, ahead, tunings

from kvasir_engine.kernels.gemm.skinny import SkinnyTuning, fits
from kvasir_engine.kernels.gemm.skinny_table import Form, distance
from kvasir_engine.kernels.norms.add_norm import add_norm
from kvasir_engine.kernels.norms.norm_parameters import NormParameters
from kvasir_engine.kernels.quantized_rows import QuantizedRows

TOKENS = (1, 8, 16, 32, 64)
Shape = tuple[int, int, Form]
"""Outputs, inputs, form."""
ROTATED_BYTES = 400 << 20
"""Weights that are read in turn: several times the cache."""
GAIN = 0.99
"""Maximum share of cuBLAS's time at which the kernel is chosen."""
BEST = 4
SIMILAR = 0.25
"""A shape that is as near as this to another, as skinny_table.py has it, is not measured."""


def rows_of(tokens: int) -> int:
    """Rows that the kernel is compiled for."""
    return 1 if tokens == 1 else max(16, tokens)


def shapes(model: Path) -> Iterator[Shape]:
    """Shapes of a model's layers, experts apart."""
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config", config)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    yield (heads + 2 * kv_heads) * dim, hidden, "parts"
    yield hidden, heads * dim, "parts"
    if "num_experts" in config:
        yield config["num_experts"], hidden, "plain"
    else:
        yield 2 * config["intermediate_size"], hidden, "gated"
        yield hidden, config["intermediate_size"], "parts"
    yield config["vocab_size"], hidden, "plain"


def compile_one(kind: str, tokens: int, tuning: SkinnyTuning, form: Form) -> None:
    """Compile the kernel into Triton's cache on disk."""
    layer = FORMATS[kind]
    try:
        layer.skinny(layer.inputs(tokens, 4096), tuning, form)(layer.weight(256, 4096))
        torch.cuda.synchronize()
    except Exception as error:  # too much shared memory
        print(tokens, tuning, repr(error)[:100], flush=True)


def compile_all(kind: str) -> None:
    """All kernels, in parallel."""
    forms: tuple[Form, ...] = ("plain", "gated", "parts")
    wanted = {
        (kind, rows_of(tokens), replace(tuning, parts=min(tuning.parts, 2)), form)
        for tokens in TOKENS
        for form in forms
        for tuning in ahead(tunings(tokens, form, kind), AHEAD, *OTHERS_AHEAD)
    }
    with ProcessPoolExecutor(
        max(1, (os.cpu_count() or 2) - 2), mp_context=get_context("spawn")
    ) as pool:
        for done in [pool.submit(compile_one, *each) for each in sorted(wanted, key=str)]:
            done.result()


class Norm:
    """The norm after a layer: of the layer's output, or for layers of any size of its own input."""

    def __init__(self, tokens: int, size: int, form: Form) -> None:
        size = size if form == "parts" else 4096
        self._residual = torch.randn(tokens, size, device=DEVICE, dtype=torch.bfloat16)
        weight = torch.ones(size, device=DEVICE, dtype=torch.bfloat16)
        self._parameters = NormParameters(weight, 1e-5)
        self._own = None if form == "parts" else self._residual

    def __call__(self, out: torch.Tensor | QuantizedRows) -> None:
        """Launch it."""
        x = out if isinstance(out, torch.Tensor) and self._own is None else self._residual
        add_norm(x, self._residual, self._parameters)


def microseconds(run: Run, weights: list[Any], calls: int, norm: Norm) -> float:
    """Device time of a call and the norm after it, among `calls` in a CUDA graph, as in a model."""
    norm(run(weights[0]))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # torch.cuda.graph() would also collect garbage, each time.
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        for call in range(calls):
            norm(run(weights[call % len(weights)]))
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


Ranked = list[tuple[float, SkinnyTuning]]
"""Microseconds by tuning, the fastest first."""


class Layer:
    """One layer's weights, several times, since they are not to be in the cache."""

    def __init__(self, kind: str, outputs: int, inputs: int) -> None:
        self.kind, self.format = kind, FORMATS[kind]
        self.shape = outputs, inputs
        self.size = outputs * inputs * self.format.itemsize
        self._weights = [
            self.format.weight(outputs, inputs)
            for _ in range(max(2, -(-ROTATED_BYTES // self.size)))
        ]

    def microseconds(self, run: Run, tokens: int, form: Form) -> float:
        """Time of `run`."""
        norm = Norm(tokens, self.shape[0], form)
        return microseconds(run, self._weights, max(len(self._weights), 8), norm)

    def library_microseconds(self, x: Any, tokens: int, form: Form) -> float:
        """Time without the kernel, by the algorithm that is fastest for so many tokens."""
        run = self.format.library(x, form, self._weights)
        return self.microseconds(run, tokens, form)

    def ranked(self, x: Any, tokens: int, form: Form) -> Ranked:
        """Time all tunings, and the best with other numbers of inputs asked for ahead."""
        tried = tunings(tokens, form, self.kind)
        found = self._timed(x, tokens, ahead(tried, AHEAD), form)
        best = [tuning for _, tuning in sorted(found, key=_time)[:BEST]]
        others = self._timed(x, tokens, ahead(best, *OTHERS_AHEAD), form)
        return sorted([*found, *others], key=_time)

    def _timed(self, x: Any, tokens: int, tried: Sequence[SkinnyTuning], form: Form) -> Ranked:
        outputs, inputs = self.shape
        found = []
        for tuning in tried:
            programs = outputs // tuning.outputs * tuning.parts
            if form == "parts" and programs > MOST_PROGRAMS:
                continue
            if not fits(outputs // (2 if form == "gated" else 1), inputs, tuning):
                continue
            try:
                run = self.format.skinny(x, tuning, form)
                found.append((self.microseconds(run, tokens, form), tuning))
            except Exception as error:
                print(tuning, repr(error)[:100], flush=True)
        return found


def _time(found: tuple[float, SkinnyTuning]) -> float:
    return found[0]


def measure(kind: str, outputs: int, inputs: int, form: Form) -> Iterator[dict[str, Any]]:
    """A result for each number of tokens; of a layer before a norm another for sums in parts,
    beside the fastest way to compute it whole."""
    layer = Layer(kind, outputs, inputs)
    for tokens in TOKENS:
        x = layer.format.inputs(tokens, inputs)
        whole: Form = "plain" if form == "parts" else form
        ranked = layer.ranked(x, tokens, whole)
        if ranked:
            other = layer.library_microseconds(x, tokens, whole)
            yield _result(layer, whole, tokens, other, ranked)
        if form != "parts" or not (in_parts := layer.ranked(x, tokens, "parts")):
            continue
        other = layer.library_microseconds(x, tokens, "parts")
        if ranked:
            run = layer.format.skinny(x, ranked[0][1], "plain")
            other = min(other, layer.microseconds(run, tokens, "parts"))
        yield _result(layer, "parts", tokens, other, in_parts)


def _result(layer: Layer, form: Form, tokens: int, other: float, ranked: Ranked) -> dict[str, Any]:
    best, tuning = ranked[0]
    outputs, inputs = layer.shape
    return {
        "outputs": outputs,
        "inputs": inputs,
        "form": form,
        "tokens": tokens,
        "other_us": round(other, 1),
        "us": round(best, 1),
        "TB_s": round(layer.size / best / 1e6, 2),
        "tuning": astuple(tuning),
        "next": [f"{us:.1f} {astuple(each)}" for us, each in ranked[1:4]],
        "worst": f"{ranked[-1][0]:.1f} {astuple(ranked[-1][1])}",
    }


def unlike(shapes: Iterable[Shape], measured: Sequence[Shape]) -> list[Shape]:
    """Return the shapes that are like none that is measured, or comes before."""
    kept = list(measured)
    for shape in shapes:
        alike = [each for each in kept if each[2] == shape[2]]
        if all(distance(shape[:2], each[:2]) >= SIMILAR for each in alike):
            kept.append(shape)
    return kept[len(measured) :]


def measure_all(
    shapes: Iterable[Shape], out: Path | None, kind: str = "bf16"
) -> list[dict[str, Any]]:
    """Return the results of layers of these shapes in this format; those that `out` has are kept,
    others are added to it."""
    results: list[dict[str, Any]] = []
    if out is not None and out.is_file():
        results = json.loads(out.read_text())
    done = {(each["outputs"], each["inputs"], each["form"]): None for each in results}
    wanted = unlike(shapes, list(done))
    if wanted:
        compile_all(kind)
    with torch.inference_mode():
        for shape in wanted:
            of_shape = list(measure(kind, *shape))
            results += of_shape
            print("\n".join(map(json.dumps, of_shape)), flush=True)
            if out is not None:
                out.write_text(json.dumps(results, indent=1))
            torch.cuda.empty_cache()
    return results


def write_table(results: Sequence[dict[str, Any]], table: Path) -> None:
    """Write the tunings; none where the other ways were faster. Lines that the table has of other
    shapes are kept."""
    lines: dict[tuple[Any, ...], list[Any]] = {}
    if table.is_file():
        lines = {tuple(line[:4]): line for line in json.loads(table.read_text())}
    for each in results:
        gains = each["us"] < GAIN * each["other_us"]
        key = each["outputs"], each["inputs"], each["form"], each["tokens"]
        lines[key] = [*key, *(each["tuning"] if gains else ())]
    table.write_text("[" + ",\n ".join(map(json.dumps, lines.values())) + "]\n")


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, action="append", required=True)
    parser.add_argument("--format", choices=FORMATS, default="bf16")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    wanted = (shape for model in options.model for shape in shapes(model))
    results = measure_all(wanted, options.out, options.format)
    if options.table:
        write_table(results, options.table)


if __name__ == "__main__":
    main()
