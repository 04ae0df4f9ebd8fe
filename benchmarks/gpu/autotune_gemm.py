"""Finds, for each linear layer and number of tokens, the fastest of cuBLASLt's algorithms.

    python benchmarks/gpu/autotune_gemm.py --model DIR ... --table F.json [--out F.json]

The heuristic names a dozen for a GEMM; this tries what it names for any of these models' layers
and any number of tokens, some hundreds: first for a few numbers of tokens, then the best of those
for all that steps are captured with. --table is what kernels/gemm/algorithm_table.py reads, --out
says how many microseconds were gained. What a table has already is not timed again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from skinny_gemm import shapes

from kvasir_engine.kernels.gemm.algorithm_table import (
    GemmChoice,
    GemmKey,
    format_algorithms,
    read_algorithms,
)
from kvasir_engine.kernels.gemm.autotune import Autotuner, Timed, torch_milliseconds
from kvasir_engine.kernels.gemm.cublaslt import Algorithm, CublasLt, cublaslt, distinct
from kvasir_engine.kernels.gemm.tuned_gemm import CANDIDATES, MIN_TUNED_TOKENS, chosen
from kvasir_engine.runner.graphs.full import decode_sizes
from kvasir_engine.startup.gemm_tuning import MIXED_STEP_TOKENS

DEVICE = torch.device("cuda:0")
ASKED = (*range(8, 520, 8), *MIXED_STEP_TOKENS)
"""Numbers of tokens that the heuristic is asked about."""
WIDELY = (32, 64, 96, 128, 160, 192, 224, 256, 512, 1024, 2048, 4096, 8192)
"""Token counts for which all algorithms are tried."""
KEPT = 6
"""Number of best algorithms kept for each of these."""
ROTATED_BYTES = 800 << 20
HEAD = 100_000
"""Outputs from which a layer is a head, which sees rows alone."""


def named(library: CublasLt, of: Sequence[tuple[int, int]]) -> list[Algorithm]:
    """Return the algorithms that the heuristic names for any of these layers, each once."""
    problems = [
        library.problem(tokens, outputs, inputs, inputs, torch.bfloat16)
        for outputs, inputs in of
        for tokens in ASKED
    ]
    return distinct(each for problem in problems for each in library.candidates(problem, 40))


class Search:
    """Search over the layers of some models, into a table."""

    def __init__(self, table: Path, out: Path | None, layers: Sequence[tuple[int, int]]) -> None:
        library = cublaslt(DEVICE)
        assert library is not None
        self._library = library
        self._table, self._out, self._layers = table, out, layers
        self._pool = named(library, layers)
        self._found: dict[GemmKey, GemmChoice] = read_algorithms(table)
        self._notes: list[dict[str, Any]] = []
        print(f"{len(self._pool)} algorithms", flush=True)

    def run(self) -> None:
        """All layers, one after the other."""
        with torch.inference_mode():
            for outputs, inputs in self._layers:
                self.layer(outputs, inputs)
                torch.cuda.empty_cache()

    def layer(self, outputs: int, inputs: int) -> None:
        """All numbers of tokens of one layer."""
        copies = max(2, min(12, ROTATED_BYTES // (outputs * inputs * 2)))
        weights = [
            torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16) for _ in range(copies)
        ]
        rows = [size for size in decode_sizes(256) if size >= MIN_TUNED_TOKENS]
        sizes = sorted({*rows, *(() if outputs > HEAD else MIXED_STEP_TOKENS)})
        missing = [size for size in sizes if (size, outputs, inputs) not in self._found]
        kept: list[Algorithm] = []
        for tokens in (size for size in WIDELY if size in missing):
            ranked = self._compete(weights, tokens, self._pool)
            kept += [each for _, each in ranked if each is not None][:KEPT]
        for tokens in (size for size in missing if size not in WIDELY):
            self._compete(weights, tokens, kept)

    def _compete(
        self, weights: list[torch.Tensor], tokens: int, algorithms: list[Algorithm]
    ) -> list[Timed]:
        began = time.monotonic()
        autotuner = Autotuner(self._library, weights, tokens)
        own = autotuner.heuristic_candidates(CANDIDATES)
        ranked = autotuner.ranked([*own, *algorithms])
        choice = chosen(ranked)
        outputs, inputs = weights[0].shape
        self._found[tokens, outputs, inputs] = choice
        self._note(
            tokens=tokens, outputs=outputs, inputs=inputs,
            us=round(ranked[0][0] * 1e3, 1),
            torch_us=round(torch_milliseconds(ranked) * 1e3, 1),
            named=choice is None or choice in {tuple(each.data) for each in own},
            seconds=round(time.monotonic() - began, 1),
        )  # fmt: skip
        return ranked

    def _note(self, **note: Any) -> None:
        print(json.dumps(note), flush=True)
        self._notes.append(note)
        self._table.write_text(format_algorithms(self._found))
        if self._out:
            self._out.write_text(json.dumps(self._notes, indent=1))


def layers(models: Sequence[Path]) -> Iterator[tuple[int, int]]:
    """(outputs, inputs) of the models' layers, experts and their routers apart, each once."""
    yield from {
        (outputs, inputs): None
        for model in models
        for outputs, inputs, _ in shapes(model)
        if outputs > 256
    }


def main() -> None:
    """Search and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, action="append", required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    Search(options.table, options.out, list(layers(options.model))).run()


if __name__ == "__main__":
    main()
