"""Build a runner over several ranks: checks, worker processes, and rank 0's own part."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kvasir.models.hf_config import ConfigError, load_config, parse_shape
from kvasir.models.model_shape import ModelShape
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.parallel.executor import Executor, OnRankDeath
from kvasir_engine.parallel.parallel_runner import TensorParallelRunner
from kvasir_engine.parallel.protocol import Progress
from kvasir_engine.settings import EngineSettings, SettingsError
from kvasir_engine.sim.sim_build import build_sim_runner
from kvasir_engine.startup.built_runner import BuiltRunner, StartupTimer
from kvasir_engine.startup.precompile.precompile import Precompiler

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


def build_parallel_runner(
    settings: EngineSettings,
    model_dir: Path,
    timer: StartupTimer | None = None,
    precompiler: Precompiler | None = None,
    *,
    on_death: OnRankDeath | None = None,
) -> BuiltRunner:
    """Start the other ranks, load every rank's shard and agree on the size of the caches.

    Raises ModelLoadError and SettingsError, whichever rank they come from, and RankError when a
    rank ended otherwise; no process is left then.
    """
    shape = _shape(model_dir, settings)
    check_size(settings.tensor_parallel_size, shape, whole_experts=settings.enable_expert_parallel)
    # Two bytes a number: in fp32, which no one serves in, the largest steps are NCCL's.
    step_bytes = 2 * shape.hidden_size * settings.scheduler.max_num_batched_tokens
    executor = Executor(settings, model_dir, step_bytes=step_bytes, on_death=on_death)
    try:
        with executor.together():
            if settings.device == "sim":
                return _build_simulated_rank_zero(executor, settings, model_dir)
            return _build_rank_zero(executor, settings, model_dir, timer, precompiler)
    except BaseException:
        executor.close()
        raise


def _build_rank_zero(
    executor: Executor,
    settings: EngineSettings,
    model_dir: Path,
    timer: StartupTimer | None,
    precompiler: Precompiler | None,
) -> BuiltRunner:
    # torch takes as long to import here as in the workers, which have just been started.
    from kvasir_engine.parallel.rendezvous import check_devices, meet
    from kvasir_engine.startup.torch_build import build_torch_runner, pick_device

    size = settings.tensor_parallel_size
    device = pick_device(settings.device)
    check_devices(size, device)
    warn_of_gpus(device)
    executor.wait_for(Progress.IMPORTED)
    meet(0, settings, store=executor.store, device=device, step_bytes=executor.step_bytes)
    built_runner = build_torch_runner(settings, model_dir, timer, precompiler)
    executor.wait_for(Progress.READY)
    built_runner.runner = TensorParallelRunner(built_runner.runner, executor)
    return built_runner


def _build_simulated_rank_zero(
    executor: Executor, settings: EngineSettings, model_dir: Path
) -> BuiltRunner:
    """Build rank 0 of simulated ranks: processes and plans are real, and nothing is summed."""
    built_runner = build_sim_runner(settings, model_dir)
    executor.wait_for(Progress.READY)
    built_runner.runner = TensorParallelRunner(built_runner.runner, executor)
    return built_runner


def warn_of_gpus(device: torch.device) -> None:
    """Say in the log how far tensor parallelism over GPUs has been tested."""
    if device.type == "cuda":
        log.warning(
            "Tensor parallelism over GPUs has been tested on two H100 alone, with small models; "
            "a process that had closed its engine did not always end there."
        )


def check_size(size: int, shape: ModelShape, *, whole_experts: bool = False) -> None:
    """Raise SettingsError when the model's layers cannot be divided over `size` ranks, experts
    whole or each of them."""
    if whole_experts and not shape.num_sparse_layers:
        raise SettingsError(
            "--enable-expert-parallel is for models with experts, and this one has none;"
            " leave it out."
        )
    widths = _widths(shape, whole_experts=whole_experts)
    possible = [n for n in range(1, shape.num_heads + 1) if _divides(n, shape, widths)]
    if size not in possible:
        raise SettingsError(
            f"--tensor-parallel-size {size} does not divide this model of {shape.num_heads} "
            f"attention heads, {shape.num_kv_heads} KV heads and {_named(widths)}; possible values "
            f"are {', '.join(map(str, possible))}."
        )


def _divides(size: int, shape: ModelShape, widths: dict[str, list[int]]) -> bool:
    """KV heads may be fewer than ranks: each of them is then on several ranks."""
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    totals = [heads, *(total for each in widths.values() for total in each)]
    even = all(total % size == 0 for total in totals)
    return even and (kv_heads % size == 0 or size % kv_heads == 0)


def _widths(shape: ModelShape, *, whole_experts: bool) -> dict[str, list[int]]:
    """Sizes that ranks divide, by what they are of."""
    dense = [shape.intermediate_size] if shape.num_sparse_layers < shape.num_layers else []
    if not shape.num_sparse_layers:
        return {"MLPs of width": dense}
    if whole_experts:
        return {"experts": [shape.num_experts], "MLPs of width": dense}
    return {"MLPs of width": [*dense, shape.moe_intermediate_size]}


def _named(widths: dict[str, list[int]]) -> str:
    """Return "8 experts and MLPs of width 32 and 64"."""
    named = []
    for what, sizes in widths.items():
        numbers = " and ".join(map(str, sizes))
        if numbers:
            named.append(f"{numbers} {what}" if what == "experts" else f"{what} {numbers}")
    return " and ".join(named)


def _shape(model_dir: Path, settings: EngineSettings) -> ModelShape:
    try:
        return parse_shape(settings.overrides.apply(load_config(model_dir)))
    except ConfigError as error:
        raise ModelLoadError(str(error)) from error
