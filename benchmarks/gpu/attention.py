"""Tunes and times the attention kernels on a GPU, and checks them against the reference.

    python benchmarks/gpu/attention.py --out F.json
    python benchmarks/gpu/attention.py --layers 12/2/128,32/8/64 --out F.json
    python benchmarks/gpu/attention.py --kv-cache-dtype fp8 --parts check,decode --out F.json

Llama-3.1-8B's layer (32 heads, 8 KV heads of 128, bf16, blocks of 16 in random order). Decode:
microseconds and TB/s of keys and values for batches of equal contexts, of 200 to 2,000 tokens, and
of one long one among short ones; prefill: TFLOP/s of a causal prompt and of chunks behind a cached
prefix by the best tuning of the Triton kernel, beside the kernel for Hopper and cuDNN's SDPA;
shared: microseconds of decodes with a shared prefix and keys of their own. With --layers, only
decodes of layers of so many query heads, KV heads and numbers of a head. With --kv-cache-dtype fp8
the cache is of float8, by check, decode and prefill.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec
from kvasir_engine.attention.torch_reference import TorchAttention
from kvasir_engine.attention.triton.decode_tuning import DecodeTuning
from kvasir_engine.attention.triton.paged_prefill import PrefillTuning
from kvasir_engine.attention.triton.widened_pages import WidenedPages
from kvasir_engine.attention.triton_backend import TritonAttention
from kvasir_engine.device.float8 import FP8
from kvasir_engine.kv.cache_spec import UNSCALED, KVScales
from kvasir_engine.runner.prefix_groups import PrefixGroup, PrefixTiles
from kvasir_engine.runner.split_kv_choice import needs_split_kv

DEVICE = torch.device("cuda")
HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 16
AT_ONCE = 12
"""Processes of the check."""
SPEC = AttentionSpec(0, HEADS, KV_HEADS, DIM, DIM**-0.5)
DECODES = {
    **{
        f"{entries}x{context}": [context] * entries
        for entries, context in (
            *[(entries, 1024) for entries in (1, 8, 64, 256)],
            *[(256, 2048), (64, 8192), (1, 32768)],
            *[(entries, 1100) for entries in (2, 4, 16, 24, 32, 40, 48, 56, 80, 128, 160, 192)],
        )
    },
    **{
        f"{entries}x200-2000": random.Random(entries).choices(range(200, 2000), k=entries)
        for entries in (4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 128, 160, 192, 256)
    },
    **{f"64000+{entries}x1000": [64_000] + [1000] * entries for entries in (7, 31, 63, 127, 255)},
}
"""Contexts of a batch's entries."""
PREFILLS = [
    *[(1, 512, 512), (1, 4096, 4096), (2, 4096, 4096), (8, 1024, 1024)],
    *[(1, 512, 8192), (128, 64, 4160)],
]
"""(entries, new tokens, length)."""
SHARED = [(256, 4096, 96), (64, 4096, 96), (256, 1024, 96)]
"""(entries, keys in common, keys of their own)."""


def make_batch(new: list[int], lengths: list[int], decodes: int) -> tuple[AttentionBatch, int]:
    """Entries over blocks in random order, and the pool's size."""
    counts = [-(-length // BLOCK) for length in lengths]
    count = sum(counts)
    pool = torch.randperm(count, device=DEVICE).int()
    table = torch.nn.utils.rnn.pad_sequence(pool.split(counts), batch_first=True)
    start = torch.tensor([0, *new], device=DEVICE).cumsum(0).int()
    return (
        AttentionBatch(
            block_table=table,
            slot_mapping=torch.zeros(sum(new), dtype=torch.int64, device=DEVICE),
            query_start=start,
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
            num_decodes=decodes,
            max_seq_len=max(lengths),
            query_lens_cpu=new,
            seq_lens_cpu=lengths,
        ),
        count,
    )


def milliseconds(run: Callable[[], Any], repeat: int = 10) -> float:
    """Device time of one call inside a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeat):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / repeat)
    return float(sorted(times)[1])


def stored(cache: torch.Tensor, *, fp8: bool) -> torch.Tensor:
    """The cache, or the same numbers rounded to float8."""
    return cache.to(FP8) if fp8 else cache


def kernels(spec: AttentionSpec, dtype: torch.dtype, *, fp8: bool) -> TritonAttention:
    """The backend for such layers, or for the same over caches of float8."""
    if not fp8:
        return TritonAttention(DEVICE)
    given: dict[str, Any] = {"tokens": 8192, "block_size": BLOCK, "device": DEVICE}
    return TritonAttention(DEVICE, pages=WidenedPages([spec], dtype=dtype, **given))


def check(*, fp8: bool) -> dict[str, float]:
    """Relative error (norms) of both backends against float64, over several kinds of layers: at
    once, since most of the time kernels compile."""
    heads = ((8, 2, 128), (4, 4, 64), (8, 1, 256), (6, 2, 96), (4, 1, 80))
    dtypes = torch.bfloat16, torch.float32
    layers = itertools.product(heads, (None, 128), (None, 30.0), dtypes, (fp8,))
    errors = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(AT_ONCE, mp_context=context) as pool:
        for found in pool.map(errors_of, layers):
            errors.update(found)
    return errors


def errors_of(layer: tuple[tuple[int, int, int], Any, Any, torch.dtype, bool]) -> dict[str, float]:
    """Relative errors of a layer: heads, KV heads and numbers of a head, window, soft cap, type,
    and whether the cache is of float8."""
    (heads, kv, dim), window, cap, dtype, fp8 = layer
    torch.manual_seed(0)
    new, lengths = [1] * 6 + [7, 130, 65], [1, 17, 600, 513, 64, 300, 7, 200, 400]
    batch, blocks = make_batch(new, lengths, 6)
    moved: dict[str, Any] = {
        each.name: value.cpu()
        for each in fields(batch)
        if isinstance(value := getattr(batch, each.name, None), torch.Tensor)
    }
    spec = AttentionSpec(0, heads, kv, dim, dim**-0.5, window=window, softcap=cap)
    cache = torch.randn(2, blocks, BLOCK, kv, dim, device=DEVICE, dtype=dtype)
    cache, scales = stored(cache, fp8=fp8), KVScales(0.5, 2.0) if fp8 else UNSCALED
    q = torch.randn(sum(new), heads, dim, device=DEVICE, dtype=dtype)
    factors = torch.tensor(scales, dtype=torch.float64).view(2, 1, 1, 1, 1)
    # On the CPU in float64: what the GPU's own libraries do is checked beside it.
    want = TorchAttention(torch.device("cpu")).attend(
        spec, q.double().cpu(), cache.double().cpu() * factors, replace(batch, **moved)
    )
    errors = {}
    for backend in (kernels(spec, dtype, fp8=fp8), TorchAttention(DEVICE)):
        got = backend.attend(spec, q, cache, batch, scales=scales).double().cpu()
        name = f"{heads}/{kv}x{dim} window={window} cap={cap} {dtype}"
        name = f"{type(backend).__name__} {name}"
        errors[name] = ((got - want).norm() / want.norm()).item()
    return errors


def _attend_all(
    backend: TritonAttention,
    q: torch.Tensor,
    caches: list[torch.Tensor],
    batch: AttentionBatch,
    spec: AttentionSpec = SPEC,
) -> None:
    for cache in caches:
        backend.attend(spec, q, cache, batch)


def decode_figures(
    spec: AttentionSpec,
    decodes: dict[str, list[int]],
    tunings: list[DecodeTuning],
    *,
    fp8: bool = False,
) -> dict[str, Any]:
    """Time of each batch, and the best ways to launch it."""
    found = {}
    backend = kernels(spec, torch.bfloat16, fp8=fp8)
    kv_heads, dim = spec.num_kv_heads, spec.head_dim
    for name, contexts in decodes.items():
        entries, keys = len(contexts), sum(contexts)
        batch, blocks = make_batch([1] * entries, contexts, entries)
        layers = max(2, min(8, (300 << 20) // (keys * kv_heads * dim * 4) + 1))
        shape = 2, blocks, BLOCK, kv_heads, dim
        caches = [
            stored(torch.randn(shape, device=DEVICE, dtype=torch.bfloat16), fp8=fp8)
            for _ in range(layers)
        ]
        q = torch.randn(entries, spec.num_heads, dim, device=DEVICE, dtype=torch.bfloat16)
        results: list[tuple[float, str]] = []
        batch.decode_order = batch.seq_lens.argsort(descending=True).int()
        batch.split_kv = needs_split_kv(np.asarray(contexts, dtype=np.int32))
        for tuning in [None] if batch.split_kv else [None, *tunings]:
            backend.decode_tuning = tuning
            try:
                ms = milliseconds(partial(_attend_all, backend, q, caches, batch, spec)) / layers
            except Exception as error:  # too much shared memory
                print("decode", tuning, repr(error)[:120], flush=True)
                continue
            results.append((ms, str(tuning or "as chosen")))
        chosen, size = results[0][0], keys * kv_heads * dim * 2 * caches[0].itemsize
        ranked = [f"{ms * 1e3:.1f} {each}" for ms, each in sorted(results)]
        found[name] = {
            "us": round(chosen * 1e3, 1),
            "TB_s": round(size / chosen / 1e9, 2),
            "fastest_first": ranked,
        }
        print("decode", name, found[name]["us"], ranked[:4], flush=True)
    return found


def tunings_to_try(*, widely: bool) -> list[DecodeTuning]:
    """Ways to launch a decode."""
    tiles = [(128, 4, 3), (128, 4, 2), (64, 2, 3), (32, 1, 6), (32, 1, 4)]
    parts: tuple[int, ...] = (1, 2, 4, 6, 8)
    if widely:
        tiles += [(64, 4, 3), (64, 2, 4), (64, 2, 2), (64, 1, 4), (32, 2, 4), (32, 4, 2)]
        tiles += [(128, 4, 4), (16, 1, 8), (32, 2, 2), (32, 2, 3), (64, 4, 4), (128, 2, 2)]
        parts = (1, 2, 3, 4, 6, 8)
    return [DecodeTuning(*tile, each) for tile in tiles for each in parts]


def other_layers(named: str, decodes: dict[str, list[int]], *, fp8: bool) -> dict[str, Any]:
    """Times of decodes of other layers: `named` as 12/2/128,32/8/64."""
    found = {}
    for each in named.split(","):
        heads, kv_heads, dim = map(int, each.split("/"))
        print(each, flush=True)
        spec = AttentionSpec(0, heads, kv_heads, dim, dim**-0.5)
        found[each] = decode_figures(spec, decodes, tunings_to_try(widely=True), fp8=fp8)
    return found


def prefill_figures(*, quick: bool, fp8: bool) -> dict[str, Any]:
    """Best tuning and rate of each kind of prompt."""
    found = {}
    backend, by_hopper = (kernels(SPEC, torch.bfloat16, fp8=fp8) for _ in range(2))
    backend.by_hopper = False
    tunings = [
        PrefillTuning(rows, keys, warps, stages)
        for rows in (64, 128)
        for keys in (64, 128)
        for warps in (4, 8)
        for stages in (2, 3)
    ]
    for entries, new, length in PREFILLS:
        batch, blocks = make_batch([new] * entries, [length] * entries, 0)
        shape = 2, blocks, BLOCK, KV_HEADS, DIM
        cache = stored(torch.randn(shape, device=DEVICE, dtype=torch.bfloat16), fp8=fp8)
        q = torch.randn(entries * new, HEADS, DIM, device=DEVICE, dtype=torch.bfloat16)
        results = []
        for tuning in [PrefillTuning()] if quick else tunings:
            backend.prefill_tuning = tuning
            try:
                backend.attend(SPEC, q, cache, batch)
                ms = milliseconds(partial(_attend_all, backend, q, [cache], batch), 5)
            except Exception as error:  # too much shared memory
                print("prefill", tuning, repr(error)[:120], flush=True)
                continue
            results.append((ms, tuning))
        results.sort(key=lambda each: each[0])
        best, tuning = results[0]
        pairs = entries * new * (length - new + new / 2)
        name = f"{entries}x{new}/{length}"
        found[name] = {
            "ms": round(best, 3),
            "TFLOP_s": round(4 * pairs * DIM * HEADS / best / 1e9, 1),
            "tuning": str(tuning),
            "next": [f"{ms:.3f} {each}" for ms, each in results[1:4]],
            "cudnn_ms": _cudnn(entries, new) if new == length else None,
        }
        if by_hopper.by_hopper:
            ms = milliseconds(partial(_attend_all, by_hopper, q, [cache], batch), 5)
            rate = round(4 * pairs * DIM * HEADS / ms / 1e9, 1)
            found[name] |= {"hopper_ms": round(ms, 3), "hopper_TFLOP_s": rate}
        print("prefill", name, found[name], flush=True)
    return found


def shared_figures() -> dict[str, Any]:
    """Microseconds of decodes, by the kernels of either kind."""
    found: dict[str, Any] = {}
    backend = TritonAttention(DEVICE)
    kinds = (True, False) if backend.by_hopper else (False,)
    tiles = PrefixTiles.for_heads(HEADS // KV_HEADS, BLOCK)
    for entries, common, own in SHARED:
        batch, blocks = make_batch([1] * entries, [common + own] * entries, entries)
        shared_blocks = common // BLOCK
        batch.block_table[:, :shared_blocks] = batch.block_table[0, :shared_blocks]
        group = PrefixGroup(tuple(range(entries)), shared_blocks)
        batch.shared = tiles.on_device([group], entries, DEVICE)
        cache = torch.randn(2, blocks, BLOCK, KV_HEADS, DIM, device=DEVICE, dtype=torch.bfloat16)
        q = torch.randn(entries, HEADS, DIM, device=DEVICE, dtype=torch.bfloat16)
        name = f"{entries}x{common}+{own}"
        found[name] = {}
        for by_hopper in kinds:
            backend.by_hopper = by_hopper
            ms = milliseconds(partial(_attend_all, backend, q, [cache], batch))
            found[name]["hopper_us" if by_hopper else "triton_us"] = round(ms * 1e3, 1)
        print("shared", name, found[name], flush=True)
    return found


def _cudnn(entries: int, length: int) -> float:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q = torch.randn(entries, HEADS, length, DIM, device=DEVICE, dtype=torch.bfloat16)
    k = torch.randn(entries, KV_HEADS, length, DIM, device=DEVICE, dtype=torch.bfloat16)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        return round(
            milliseconds(
                lambda: scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True), 5
            ),
            3,
        )


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="the present tuning only")
    parser.add_argument("--parts", default="check,decode,prefill,shared")
    parser.add_argument("--layers", default="", help="heads/KV heads/numbers, separated by commas")
    parser.add_argument(
        "--decodes", default="8x1024,64x1024,64x200-2000,256x1024", help="batches with --layers"
    )
    parser.add_argument("--kv-cache-dtype", choices=("auto", "fp8"), default="auto")
    options = parser.parse_args()
    parts = [] if options.layers else options.parts.split(",")
    fp8 = options.kv_cache_dtype == "fp8"
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name()}
    if options.layers:
        decodes = {name: DECODES[name] for name in options.decodes.split(",")}
        figures["layers"] = other_layers(options.layers, decodes, fp8=fp8)
    if "check" in parts:
        figures["errors"] = check(fp8=fp8)
        for name, error in figures["errors"].items():
            print("error", f"{error:.1e}", name, flush=True)
    if "prefill" in parts:
        figures["prefill"] = prefill_figures(quick=options.quick, fp8=fp8)
    if "decode" in parts:
        tunings = [] if options.quick else tunings_to_try(widely=False)
        figures["decode"] = decode_figures(SPEC, DECODES, tunings, fp8=fp8)
    if "shared" in parts:
        figures["shared"] = shared_figures()
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
