"""Microseconds of an all-reduce inside a CUDA graph over the GPUs of one host, by algorithm.

    python benchmarks/gpu/all_reduce.py [--ranks 2] [--out F.json]

bf16 rows of 4,096 and 8,192: by NCCL, by the engine's one-shot kernel, by torch's symmetric memory
in one shot and in two, and by what the engine chooses; the fastest should be the choice. Beside
them torch's kernels without the copy into the shared buffer, and the sums of whole numbers, which
are exact, over many calls in a row: a buffer that is written too soon shows there. At last an
all-reduce, an addition and a norm by two kernels and by one.
Exits 1 when a sum is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in ("api", "engine", "benchmarks")]

ROWS = (1, 8, 64, 256, 1024)
HIDDEN = (4096, 8192)
CALLS, REPLAYS = 40, 5
"""All-reduces in a graph, and how often it is timed."""
SUMS = 400
"""Calls in a row whose sums are compared."""
MAX_FUSED_BYTES = 1 << 20
"""Largest tensor that is summed and normed by one kernel."""
MAX_SECONDS = 110.0


def microseconds(launch: Callable[[], object]) -> float:
    """Return the best time of one call, in a graph of many."""

    from kvasir_engine.device.collectives import all_reduce_min
    from kvasir_engine.device.graph_capture import GraphPool, capturing

    def launch_all() -> None:
        for _ in range(CALLS):
            launch()

    with capturing():
        launch()
        graph, _ = GraphPool().record(launch_all)
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        all_reduce_min([0])
        begin, end = (_event() for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / CALLS * 1e3)
    return float(round(min(times), 2))


def _event() -> Any:
    import torch

    make: Any = torch.cuda.Event  # torch leaves it untyped
    return make(enable_timing=True)


def ways(rows: int, hidden: int) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name; each on a tensor of its own."""
    import torch

    from kvasir_engine.device.collectives import all_reduce, tensor_parallel
    from kvasir_engine.device.communicators.all_reduce_choice import AllReduce

    communicator: Any = tensor_parallel().communicator
    x = torch.zeros(rows, hidden, dtype=torch.bfloat16, device="cuda")
    found: dict[str, Callable[[], object]] = {"engine_us": lambda: all_reduce(x)}
    if not hasattr(communicator, "all_reduce_by"):
        return found
    names = {"nccl_us": AllReduce.NCCL, "one_shot_us": AllReduce.ONE_SHOT}
    names["two_shot_us"] = AllReduce.TWO_SHOT
    for name, algorithm in names.items():
        found[name] = partial(communicator.all_reduce_by, algorithm, x)
    buffer = communicator._buffer[: x.numel() * 2].view(x.dtype).view(x.shape)
    ops, group = torch.ops.symm_mem, communicator._group
    found["torch_one_shot_without_copy_us"] = lambda: ops.one_shot_all_reduce_out(
        buffer, "sum", group, x
    )
    found["two_shot_without_copy_us"] = lambda: ops.two_shot_all_reduce_out(buffer, "sum", group, x)
    found["two_shot_in_place_us"] = lambda: ops.two_shot_all_reduce_(buffer, "sum", group)
    found["torch_one_shot_us"] = lambda: ops.one_shot_all_reduce_copy(buffer, x, "sum", group)
    return found


def measure_norms(made: dict[str, Any]) -> None:
    """Add the figures of sums that are added and normed."""
    import torch

    from kvasir_engine.device.collectives import tensor_parallel

    communicator: Any = tensor_parallel().communicator
    if not hasattr(communicator, "one_shot"):
        return
    for n in (1, 64):
        by_norm = wrong(partial(summed_in_norm, communicator.one_shot), n)
        made["wrong_sums"][f"{n} rows, in a norm"] = {"one-shot": by_norm}
    for shape, found in made["us"].items():
        rows, hidden = map(int, shape.split("x"))
        if rows * hidden * 2 <= MAX_FUSED_BYTES:
            x = torch.zeros(rows, hidden, dtype=torch.bfloat16, device="cuda")
            found |= norm_figures(x, communicator.one_shot)


def norm_figures(x: Any, one_shot: Any) -> dict[str, float]:
    """Return the times of an all-reduce, an addition and a norm: by two kernels, and by one."""
    import torch

    from kvasir_engine.device.collectives import all_reduce
    from kvasir_engine.kernels.norms.add_norm import add_norm, add_norm_rows
    from kvasir_engine.kernels.norms.norm_parameters import NormParameters

    residual = torch.zeros_like(x)
    norm = NormParameters(torch.ones_like(x[0]), 1e-5)
    return {
        "then_norm_us": microseconds(lambda: add_norm(all_reduce(x), residual, norm)),
        "with_norm_us": microseconds(lambda: add_norm(x, residual, norm, ranks=one_shot)),
        "with_norm_to_fp8_us": microseconds(
            lambda: add_norm_rows(x, residual, norm, ranks=one_shot)
        ),
    }


def summed_in_norm(one_shot: Any, x: Any) -> Any:
    """Return the sum of x over ranks, as the kernel that norms it computes it."""
    from kvasir_engine.kernels.norms.add_norm import add_norm

    return add_norm(x, None, None, ranks=one_shot)[1]


def wrong_sums(rows: int) -> dict[str, int]:
    """Return how many of SUMS sums in a row are wrong, by algorithm."""
    from kvasir_engine.device.collectives import tensor_parallel
    from kvasir_engine.device.communicators.all_reduce_choice import AllReduce

    communicator: Any = tensor_parallel().communicator
    if not hasattr(communicator, "all_reduce_by"):
        return {}
    return {
        each.value: wrong(partial(communicator.all_reduce_by, each), rows) for each in AllReduce
    }


def wrong(all_reduce: Callable[[Any], Any], rows: int, hidden: int = 4096) -> int:
    """Return how many of SUMS sums in a row are wrong; each call's numbers differ."""
    import torch

    from kvasir_engine.device.collectives import tensor_parallel

    ranks = tensor_parallel()
    column = torch.arange(rows * hidden, device="cuda").view(rows, hidden) % 13
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    for call in range(SUMS):
        x = (column + ranks.rank * (call % 5)).to(torch.bfloat16)
        others = ranks.size * (ranks.size - 1) // 2
        want = ranks.size * column + others * (call % 5)
        count += (all_reduce(x) != want.to(torch.bfloat16)).any()
    return int(count)


def measure(rank: int, ranks: int, store: str, answer: Any) -> None:
    """Measure as one rank; rank 0 answers."""
    import torch

    from kvasir_engine.device.collectives import tensor_parallel
    from kvasir_engine.parallel.rendezvous import meet
    from kvasir_engine.settings import make_settings

    settings = make_settings("none", tensor_parallel_size=ranks)
    meet(rank, settings, store=Path(store), device=torch.device("cuda"), step_bytes=32 << 20)
    communicator: Any = tensor_parallel().communicator
    made: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    made |= {"ranks": ranks, "communicator": communicator.name, "us": {}}
    with torch.inference_mode():
        made["wrong_sums"] = {f"{n} rows": wrong_sums(n) for n in (1, 64, 512)}
        for hidden in HIDDEN:
            for rows in ROWS:
                found: dict[str, Any] = {}
                for name, launch in ways(rows, hidden).items():
                    try:
                        found[name] = microseconds(launch)
                    except RuntimeError as error:
                        found[name] = str(error).partition("\n")[0]
                x = torch.empty(rows, hidden, dtype=torch.bfloat16, device="cuda")
                if hasattr(communicator, "choose"):
                    found["chosen"] = communicator.choose(x).value
                made["us"][f"{rows}x{hidden}"] = found
                if rank == 0:
                    print(f"{rows}x{hidden}", json.dumps(found), flush=True)
                    answer.put(made)
    if rank == 0:
        answer.put({**made, "complete": "but for norms"})
    with torch.inference_mode():
        measure_norms(made)
    if rank == 0:
        answer.put({**made, "complete": True})
    # Neither library may be torn down while the other rank still waits for this one.
    time.sleep(1)
    os._exit(0)


def main() -> int:
    """Print and write the figures; 1 when sums were wrong or not all was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    options = parser.parse_args()
    out = options.out / "all_reduce.json" if options.out.is_dir() else options.out
    context = multiprocessing.get_context("spawn")
    answer: Any = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        given = (options.ranks, f"{directory}/store", answer)
        processes = [
            context.Process(target=measure, args=(rank, *given)) for rank in range(options.ranks)
        ]
        for process in processes:
            process.start()
        made = last_answer(answer, processes)
        for process in processes:
            process.kill()
            process.join()
    bad = [each for found in made.get("wrong_sums", {}).values() for each in found.values()]
    out.write_text(json.dumps(made, indent=1) + "\n")
    print("wrong sums:", made.get("wrong_sums"), "complete:", made.get("complete", False))
    for shape, found in made.get("us", {}).items():
        print(shape, json.dumps(found))
    return int(any(bad) or made.get("complete") is not True)


def last_answer(answer: Any, processes: list[Any]) -> dict[str, Any]:
    """Return what rank 0 said last, before all was measured or the time was up."""
    made: dict[str, Any] = {}
    deadline = time.monotonic() + MAX_SECONDS
    while made.get("complete") is not True and time.monotonic() < deadline:
        try:
            made = answer.get(timeout=0.5)
        except Exception:
            if not any(process.is_alive() for process in processes):
                break
    return made


if __name__ == "__main__":
    sys.exit(main())
