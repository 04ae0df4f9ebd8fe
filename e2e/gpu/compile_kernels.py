"""Compiles, for GPUs that are not here, every kernel that a start of the zoo's models launches.

    python e2e/gpu/compile_kernels.py --out F.json [--capabilities 8.0,9.0] [--dtypes bfloat16]
        [--models gemma2-9b,llama3.1-8b+awq,...] [--covering] [--seconds 500] [--cache DIR]

A dry run (`kvasir_engine.startup.precompile`) says which kernels those are. Each is compiled once,
down to the GPU's own code, and its shared memory is compared with what one program may use there.
Exits 1 where one does not compile or does not fit, or time ended before. Compiled kernels stay in
--cache, found by content, so that a run goes on where the last one stopped; `--seconds` ends one in
time.

A model whose name ends with "+awq" has its weights in 4 bits, with "+fp8" weights, keys and values
in float8, for which GPUs below 8.9 have no kernels.

--covering compiles fewer: of each format every function, every shape of tile with each dtype, and
both values of every switch. Kernels that formats have in common are compiled once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks")]

ZOO = ROOT / "benchmarks" / "models" / "zoo"
FORMATS: dict[str, dict[str, Any]] = {
    "": {},
    "awq": {
        "hf_overrides": {
            "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}
        }
    },
    "fp8": {"quantization": "fp8", "kv_cache_dtype": "fp8"},
}
"""Settings by what stands behind a model's name and "+"."""
QUANTIZED = ("llama3.1-8b", "gemma2-9b", "qwen3-30b-a3b")
"""Models that are compiled for in each of the formats."""
DTYPES = ("bfloat16", "float16", "float32")
TILES = frozenset({"PADDED_DIM", "BM", "SHAPE"})
"""Constants that shape tiles, whose bytes differ by dtype: a covering set has each with each."""
SWITCHES = frozenset({"WINDOW", "CAP"})
"""Constants of which a covering set covers whether they are zero, as it covers what is a bool."""


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU to compile for."""

    name: str
    multiprocessors: int
    shared_kib: int
    """Shared memory that one program may use (CUDA programming guide, "Compute Capabilities")."""


TARGETS = {
    "8.0": Target("NVIDIA A100-SXM4-80GB", 108, 163),
    "8.6": Target("NVIDIA A10G", 80, 99),
    "8.9": Target("NVIDIA L4", 58, 99),
    "9.0": Target("NVIDIA H100 80GB HBM3", 132, 227),
    "10.0": Target("NVIDIA B200", 148, 227),
    "12.0": Target("NVIDIA GeForce RTX 5090", 170, 99),
}


class _Collector(Executor):
    """Executor that keeps what it is asked to compile."""

    def __init__(self) -> None:
        self.compilations: list[Any] = []

    def submit(self, fn: Any, /, *_: Any, **__: Any) -> Future[Any]:
        """Keep `fn`; nobody launches the result, which is None."""
        self.compilations.append(fn)
        done: Future[Any] = Future()
        done.set_result(None)
        return done


@dataclass(slots=True)
class Kernel:
    """One kernel that a start launches, to be compiled."""

    compilation: Any
    model: str
    dtype: str
    _held: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        names, cells = self.compilation.__code__.co_freevars, self.compilation.__closure__
        self._held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}

    @property
    def name(self) -> str:
        """Name of its function."""
        return str(self._held["src"].fn.__name__).lstrip("_")

    @property
    def constants(self) -> dict[str, Any]:
        """Compile-time constants by name, warps and stages among them."""
        source, options = self._held["src"], self._held["options"]
        names = source.fn.arg_names
        found = {names[path[0]]: value for path, value in source.constants.items()}
        return {**found, "warps": options.num_warps, "stages": options.num_stages}

    def traits(self) -> Iterator[tuple[str, ...]]:
        """Yield what a covering set covers of it: once for each format of weights that has kernels
        of its own."""
        _, _, stored = self.model.partition("+")
        yield (self.name, stored)
        for name, value in self.constants.items():
            if name in TILES:
                yield (self.name, stored, name, str(value), self.dtype)
            elif name in SWITCHES or isinstance(value, bool):
                yield (self.name, stored, name, str(bool(value)))


@dataclass(slots=True)
class Outcome:
    """Result of compiling the kernels of one function."""

    kernels: int = 0
    largest: int = 0
    """Bytes of shared memory."""
    largest_of: str = ""
    faults: list[str] = field(default_factory=list)


def collect(target: str, models: Sequence[str], dtypes: Sequence[str]) -> list[Kernel]:
    """Return the kernels that starts of `models` on `target` launch, each once; torch and Triton
    describe that GPU from now on."""
    import triton

    from kvasir_engine.loader.load_error import ModelLoadError
    from kvasir_engine.settings import make_settings
    from kvasir_engine.startup.precompile import fake_device
    from kvasir_engine.startup.precompile.precompile import GpuProperties
    from kvasir_engine.startup.precompile.shape_only_tensor import ShapeOnlyMode
    from kvasir_engine.startup.torch_build import launch_all_kernels

    gpu, capability = TARGETS[target], target.split(".")
    device = fake_device.fake_gpu(
        GpuProperties(
            gpu.name,
            major=int(capability[0]),
            minor=int(capability[1]),
            multi_processor_count=gpu.multiprocessors,
            shared_memory_per_block_optin=gpu.shared_kib << 10,
        )
    )
    found: dict[str, Kernel] = {}
    for dtype in dtypes:
        for model in models:
            collector = _Collector()
            mode = triton.AsyncCompileMode(collector)
            name, _, stored = model.partition("+")
            settings = make_settings(str(ZOO / name), dtype=dtype, **FORMATS[stored])
            # A model without code of ours has no kernels of its own either.
            with suppress(ModelLoadError), ShapeOnlyMode(device), mode:
                launch_all_kernels(settings, ZOO / name, device)
            for key, compilation in zip(mode.future_kernels, collector.compilations, strict=True):
                found.setdefault(key, Kernel(compilation, model, dtype))
    return list(found.values())


def covering(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return a few of the kernels that have all traits that any of them has: greedily the one with
    most that are not covered yet."""
    left = {index: (kernel, set(kernel.traits())) for index, kernel in enumerate(kernels)}
    chosen: list[Kernel] = []
    while left:
        best = max(left, key=lambda index: len(left[index][1]))
        kernel, covered = left.pop(best)
        if not covered:
            break
        chosen.append(kernel)
        for _, traits in left.values():
            traits -= covered
    return chosen


def compile_kernels(kernels: Sequence[Kernel], limit: int, deadline: float) -> dict[str, Outcome]:
    """Compile until `deadline`, and return the outcome by function; `limit` is in bytes."""
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for kernel in kernels:
        if time.monotonic() > deadline:
            break
        outcome = outcomes[kernel.name]
        outcome.kernels += 1
        where = f"{kernel.model} {kernel.dtype} {kernel.constants}"
        try:
            shared = int(kernel.compilation().metadata.shared)
        except Exception as error:
            outcome.faults.append(f"{where}: {error!r:.500}")
            continue
        if shared > outcome.largest:
            outcome.largest, outcome.largest_of = shared, where
        if shared > limit:
            outcome.faults.append(f"{where}: {shared} bytes of shared memory, {limit} are there")
    return dict(outcomes)


@dataclass(slots=True)
class Options:
    """Options of the command line."""

    out: Path | None
    capabilities: list[str]
    dtypes: list[str]
    models: list[str]
    covering: bool
    seconds: float
    cache: Path
    began: float = field(default_factory=time.monotonic)


def _options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--capabilities", type=_listed, default=list(TARGETS))
    parser.add_argument("--dtypes", type=_listed, default=list(DTYPES))
    parser.add_argument("--models", type=_listed, default=_zoo())
    parser.add_argument("--covering", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "kernels")
    return Options(**vars(parser.parse_args()))


def _listed(text: str) -> list[str]:
    return text.split(",")


def _zoo() -> list[str]:
    plain = sorted(config.parent.name for config in ZOO.glob("*/config.json"))
    return plain + [f"{name}+{each}" for name in QUANTIZED for each in FORMATS if each]


def one_target(target: str, options: Options) -> dict[str, Any]:
    """Return the row of a GPU."""
    kernels = collect(target, options.models, options.dtypes)
    wanted = covering(kernels) if options.covering else kernels
    limit = TARGETS[target].shared_kib << 10
    outcomes = compile_kernels(wanted, limit, options.began + options.seconds)
    return {
        "gpu": TARGETS[target].name,
        "date": datetime.now(UTC).date().isoformat(),
        "shared_memory_bytes": limit,
        "kernels": len(kernels),
        "wanted": len(wanted),
        "compiled": sum(each.kernels - len(each.faults) for each in outcomes.values()),
        "functions": {
            name: {
                "kernels": each.kernels,
                "largest_shared_bytes": each.largest,
                "largest": each.largest_of,
                "faults": each.faults,
            }
            for name, each in sorted(outcomes.items())
        },
    }


def main() -> int:
    """Compile for each GPU in a process of its own, since it is replaced in torch for good."""
    options = _options()
    os.environ["TRITON_CACHE_DIR"] = str(options.cache.resolve())
    # What the processes have in common is imported once.
    import kvasir_engine.startup.torch_build  # noqa: F401

    rows: dict[str, Any] = {}
    for target in options.capabilities:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as child:
            rows[target] = child.submit(one_target, target, options).result()
        print(target, rows[target]["compiled"], "of", rows[target]["wanted"], flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
    faults = [
        f"{target} {name}: {fault}"
        for target, row in rows.items()
        for name, outcome in row["functions"].items()
        for fault in outcome["faults"]
    ]
    print("\n".join(faults))
    return 1 if faults or any(row["compiled"] < row["wanted"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
