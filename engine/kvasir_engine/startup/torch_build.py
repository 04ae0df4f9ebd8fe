"""Build a runner from the settings: weights, memory sizing, caches."""

from __future__ import annotations

import logging
from dataclasses import replace
from operator import mul
from pathlib import Path

import torch

from kvasir.models.kv_cache_dtype import FP8_KV
from kvasir_engine.attention.backends import Fp8Cache, make_backends
from kvasir_engine.device import out_of_memory
from kvasir_engine.device.capability import choose_kernels, kernels_run_on, unsupported_gpu
from kvasir_engine.device.collectives import all_reduce_min, tensor_parallel, wait_for_ranks
from kvasir_engine.kv.groups import KVGroupSpec, group_layers
from kvasir_engine.loader.load_model import LoadedModel, WeightFill, load_model
from kvasir_engine.models.decoder import DecoderForCausalLM
from kvasir_engine.runner import kv_cache
from kvasir_engine.runner.torch_runner import TorchRunner
from kvasir_engine.settings import EngineSettings, SettingsError
from kvasir_engine.startup import cache_dtype, kv_sizing, shortages
from kvasir_engine.startup.built_runner import BuiltRunner, StartupTimer, context_length
from kvasir_engine.startup.gemm_tuning import autotune_gemms
from kvasir_engine.startup.gpu_memory import GpuMemory
from kvasir_engine.startup.kv_calibration import set_kv_scales
from kvasir_engine.startup.precompile.precompile import Precompiler
from kvasir_engine.startup.warmup import largest_step, run_warmup_steps

log = logging.getLogger(__name__)

DEFAULT_CPU_KV_BYTES = 1 << 30


def pick_device(name: str) -> torch.device:
    """The torch device that --device names; auto = CUDA when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("--device cuda: no CUDA device is visible; use --device cpu.")
    return torch.device(name)


def _of_this_rank(device: torch.device) -> torch.device:
    """Name a rank's GPU by its index, as its tensors do: what is kept by device is found by theirs,
    and threads do not inherit the current device."""
    if device != torch.device("cuda"):
        return device
    ranks = tensor_parallel()
    return torch.device("cuda", ranks.rank if ranks.size > 1 else torch.cuda.current_device())


def _require_kernels(device: torch.device, settings: EngineSettings) -> None:
    choose_kernels(settings.kernels)
    fault = unsupported_gpu(device)
    if fault is not None:
        raise SettingsError(fault)


def build_torch_runner(
    settings: EngineSettings,
    model_dir: Path,
    timer: StartupTimer | None = None,
    precompiler: Precompiler | None = None,
) -> BuiltRunner:
    """Load the model and make a runner whose caches fill the memory it may use."""
    if settings.tensor_parallel_size != tensor_parallel().size:
        raise SettingsError(
            f"--tensor-parallel-size {settings.tensor_parallel_size} cannot be had in a process "
            f"that has an engine over {tensor_parallel().size} ranks open; close that one first."
        )
    timer = timer or StartupTimer()
    device = pick_device(settings.device)
    _require_kernels(device, settings)
    device = _of_this_rank(device)
    if precompiler and kernels_run_on(device):
        precompiler.compile_for(device)
    memory = _memory_of(device, settings)
    with timer.phase("weights"):
        loaded = _load(settings, model_dir, device, settings.load_format)
    _count(memory, "weights")
    wanted = context_length(settings, loaded.shape)
    groups = _groups(settings, loaded)
    with (
        timer.phase("batch"),
        out_of_memory.raise_on_out_of_memory(
            lambda: _too_many_rows(settings, loaded, groups, wanted, memory)
        ),
    ):
        runner = _make_runner(settings, loaded, groups, wanted)
    captures = runner.can_capture and not settings.enforce_eager
    if not settings.enforce_eager:
        with timer.phase("autotune"):
            autotune_gemms(
                loaded.model,
                device,
                settings.scheduler.max_num_seqs,
                settings.scheduler.max_num_batched_tokens,
            )
    if precompiler:
        with timer.phase("precompile"):
            precompiler.finish()
    # Rank 0 has the kernels compiled for all, in a cache that they share.
    wait_for_ranks()
    with timer.phase("profile"):
        least = _least_kv(settings, groups, _block_bytes(loaded, groups), wanted)
        budget = _kv_budget(settings, runner, memory, least, captures=captures)
    with timer.phase("kv_cache"):
        num_blocks = all_reduce_min(_count_blocks(settings, loaded, groups, budget, wanted))
        block_bytes = _block_bytes(loaded, groups)
        length = _fit_context(settings, groups, (num_blocks, block_bytes), wanted, memory)
        cache_bytes = sum(map(mul, num_blocks, block_bytes))
        left = memory.free_for_kv() if memory else None
        with out_of_memory.raise_on_out_of_memory(
            lambda: shortages.too_many_blocks(settings, length, cache_bytes, str(device), left)
        ):
            caches = _allocate(loaded, groups, num_blocks)
        runner.use_caches(caches)
        set_kv_scales(runner, settings, model_dir, num_blocks)
    _count(memory, "KV cache")
    if captures:
        with timer.phase("capture"):
            runner.capture(keep_free=_kept_free(settings, memory))
            _count(memory, "CUDA graphs")
            run_warmup_steps(runner, settings.scheduler.max_num_seqs, min(num_blocks))
    if memory and tensor_parallel().rank == 0:
        log.info("%s", memory.table())
    return BuiltRunner(
        runner,
        groups,
        num_blocks,
        length,
        loaded.shape.vocab_size,
        timer.seconds,
        memory.owners if memory else {},
        dtype=str(loaded.dtype).removeprefix("torch."),
        quantization=loaded.shape.quantization_method,
    )


def _load(
    settings: EngineSettings, model_dir: Path, device: torch.device, load_format: WeightFill
) -> LoadedModel:
    return load_model(
        model_dir,
        dtype=settings.dtype,
        device=device,
        load_format=load_format,
        model_impl=settings.model_impl,
        trust_remote_code=settings.trust_remote_code,
        max_model_len=settings.max_model_len,
        seed=settings.seed or 0,
        overrides=settings.overrides,
    )


def _groups(settings: EngineSettings, loaded: LoadedModel) -> tuple[KVGroupSpec, ...]:
    dtype = cache_dtype.cache_dtype_name(settings, loaded)
    return group_layers(loaded.cache_specs, settings.cache.block_size, dtype)


def launch_all_kernels(settings: EngineSettings, model_dir: Path, device: torch.device) -> None:
    """Launch every kernel that a start launches, without weights: for shape-only tensors."""
    loaded = _load(replace(settings, model_impl="native"), model_dir, device, "none")
    if isinstance(loaded.model, DecoderForCausalLM):
        loaded.model.keep_distinct_layers()
    groups = _groups(settings, loaded)
    runner = _make_runner(settings, loaded, groups, context_length(settings, loaded.shape))
    _run_largest_step(settings, runner)
    if runner.can_capture and not settings.enforce_eager:
        runner.capture()
        run_warmup_steps(runner, settings.scheduler.max_num_seqs, settings.scheduler.max_num_seqs)


def _make_runner(
    settings: EngineSettings, loaded: LoadedModel, groups: tuple[KVGroupSpec, ...], length: int
) -> TorchRunner:
    """A runner with caches just large enough for the profiling step."""
    tokens = settings.scheduler.max_num_batched_tokens
    blocks = [
        -(-tokens // spec.block_size) + settings.scheduler.max_num_seqs + 1 for spec in groups
    ]
    small = blocks if loaded.device.type == "cuda" else [2] * len(groups)
    fp8 = None
    if groups[0].dtype == FP8_KV:
        # The spare row's token may be one more.
        specs = loaded.model.attention_specs
        fp8 = Fp8Cache(specs, length + 1, groups[0].block_size, loaded.dtype)
    return TorchRunner(
        loaded.model,
        make_backends(loaded.cache_specs, loaded.device, fp8),
        groups=groups,
        caches=_allocate(loaded, groups, small),
        num_rows=settings.scheduler.max_num_seqs,
        max_step_tokens=settings.scheduler.max_num_batched_tokens,
        max_model_len=length,
        vocab_size=loaded.shape.vocab_size,
        device=loaded.device,
        dtype=loaded.dtype,
    )


def _allocate(
    loaded: LoadedModel, groups: tuple[KVGroupSpec, ...], num_blocks: list[int]
) -> list[torch.Tensor]:
    dtype = cache_dtype.torch_dtype(groups[0].dtype)
    return kv_cache.allocate(loaded.cache_specs, groups, num_blocks, dtype, loaded.device)


def _count_blocks(
    settings: EngineSettings,
    loaded: LoadedModel,
    groups: tuple[KVGroupSpec, ...],
    budget: int,
    length: int,
) -> list[int]:
    if settings.cache.num_blocks is not None:
        return [settings.cache.num_blocks] * len(groups)
    return kv_sizing.split_blocks(
        groups,
        _block_bytes(loaded, groups),
        budget,
        max_model_len=length,
        max_num_seqs=settings.scheduler.max_num_seqs,
        max_num_batched_tokens=settings.scheduler.max_num_batched_tokens,
    )


def _block_bytes(loaded: LoadedModel, groups: tuple[KVGroupSpec, ...]) -> list[int]:
    specs, item_bytes = loaded.cache_specs, cache_dtype.torch_dtype(groups[0].dtype).itemsize
    return [kv_sizing.bytes_per_block(group, specs, item_bytes) for group in groups]


def _too_many_rows(
    settings: EngineSettings,
    loaded: LoadedModel,
    groups: tuple[KVGroupSpec, ...],
    length: int,
    memory: GpuMemory | None,
) -> SettingsError:
    tables = len(groups) * length // settings.cache.block_size
    row = 4 * (length + tables + loaded.shape.vocab_size)
    asked, free = settings.scheduler.max_num_seqs * row, memory.free() if memory else None
    return shortages.too_many_rows(settings, length, asked, str(loaded.device), free)


def _fit_context(
    settings: EngineSettings,
    groups: tuple[KVGroupSpec, ...],
    sizes: tuple[list[int], list[int]],
    wanted: int,
    memory: GpuMemory | None,
) -> int:
    """The context to serve; `sizes` are the number of each group's blocks and their bytes."""
    num_blocks, block_bytes = sizes
    chunk = settings.scheduler.max_num_batched_tokens
    fitting = kv_sizing.context_that_fits(groups, num_blocks, chunk=chunk)

    def shortage() -> SettingsError:
        needed = _least_kv(settings, groups, block_bytes, wanted)
        held, total = sum(map(mul, num_blocks, block_bytes)), memory.total if memory else None
        return shortages.short_context(settings, wanted, fitting, (held, needed), total)

    return kv_sizing.fit_context(wanted, settings.max_model_len is not None, fitting, shortage)


def _least_kv(
    settings: EngineSettings, groups: tuple[KVGroupSpec, ...], block_bytes: list[int], wanted: int
) -> int:
    """Bytes of the smallest KV cache that the engine starts with."""
    length = wanted if settings.max_model_len is not None else min(wanted, shortages.MIN_CONTEXT)
    chunk = settings.scheduler.max_num_batched_tokens
    return kv_sizing.bytes_of_one(groups, block_bytes, length, chunk=chunk)


def _memory_of(device: torch.device, settings: EngineSettings) -> GpuMemory | None:
    if device.type != "cuda":
        return None
    return GpuMemory(device, settings.cache.gpu_memory_utilization)


def _count(memory: GpuMemory | None, owner: str) -> None:
    if memory:
        memory.took(owner)


def _kv_budget(
    settings: EngineSettings,
    runner: TorchRunner,
    memory: GpuMemory | None,
    least: int,
    *,
    captures: bool,
) -> int:
    """Bytes of KV the device has room for, beside weights, the largest step and CUDA graphs.

    Raises SettingsError when there are none; what it suggests leaves `least` bytes.
    """
    asked = settings.cache.kv_cache_memory_bytes
    if memory is None:
        return DEFAULT_CPU_KV_BYTES if asked is None else asked
    device, free = memory.device, memory.free()
    with out_of_memory.raise_on_out_of_memory(
        lambda: shortages.too_large_a_step(settings, str(device), free)
    ):
        peak = _profile(settings, runner, device)
    memory.took("rows, sampling, workspaces")
    memory.expect(peak, graphs=captures)
    if asked is not None:
        return asked
    if settings.cache.num_blocks is not None:
        return 0
    left = memory.left_for_kv()
    if left <= 0:
        raise shortages.no_kv_memory(settings, least - left, memory.total, memory.taken())
    return left


def _kept_free(settings: EngineSettings, memory: GpuMemory | None) -> int:
    """Bytes that CUDA graphs must not take: a step's, and what is not the engine's."""
    if memory is None:
        return 0
    cache = settings.cache
    by_share = cache.kv_cache_memory_bytes is None and cache.num_blocks is None
    return memory.step + (memory.beyond if by_share else 0)


def _profile(settings: EngineSettings, runner: TorchRunner, device: torch.device) -> int:
    """Peak bytes of the largest step beyond what stays allocated, by running one."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _run_largest_step(settings, runner)
    peak = torch.cuda.max_memory_allocated(device) - before
    runner.use_caches([])
    return peak


def _run_largest_step(settings: EngineSettings, runner: TorchRunner) -> None:
    plan = largest_step(
        settings.scheduler.max_num_batched_tokens,
        settings.scheduler.max_num_seqs,
        runner.max_model_len,
        runner.groups,
    )
    runner.forward(plan)
    runner.sample(plan).wait()
