"""Process that goes through a start without its GPU and compiles what that start will launch:
`python -m kvasir_engine.startup.precompile.dry_run DRY_RUN`, which reads the GPU's properties from
stdin, a line of JSON."""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from concurrent.futures import Executor
from pathlib import Path

import msgspec
import triton

from kvasir_engine.device.collectives import as_lone_rank
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.parent_death import die_with_parent
from kvasir_engine.settings import EngineSettings, SettingsError
from kvasir_engine.startup.precompile.compile_pool import CompilePool
from kvasir_engine.startup.precompile.fake_device import fake_gpu
from kvasir_engine.startup.precompile.precompile import DryRun, DryRunResult, GpuProperties
from kvasir_engine.startup.precompile.shape_only_tensor import ShapeOnlyMode
from kvasir_engine.startup.torch_build import launch_all_kernels


def compile_start(
    settings: EngineSettings, model_dir: Path, gpu: GpuProperties, compiler: Executor
) -> None:
    """Have `compiler` compile what a start on `gpu` launches; torch has no other GPU afterwards."""
    device = fake_gpu(gpu)
    with (
        as_lone_rank(
            settings.tensor_parallel_size, expert_parallel=settings.enable_expert_parallel
        ),
        ShapeOnlyMode(device),
        triton.AsyncCompileMode(compiler),
    ):
        launch_all_kernels(settings, model_dir, device)


def main() -> None:
    """Compile, and print a `DryRunResult`; nothing when stdin ends before."""
    dry_run = msgspec.json.decode(sys.argv[1], type=DryRun)
    die_with_parent(dry_run.parent)
    # The parent may have others take note of its children's ends.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.disable()  # It lives for seconds, and what it forks shares its memory.
    described = sys.stdin.buffer.readline()
    if not described:
        return
    gpu = msgspec.json.decode(described, type=GpuProperties)
    pool, error = CompilePool(), ""
    try:
        compile_start(dry_run.settings, Path(dry_run.model_dir), gpu, pool)
    except (ModelLoadError, SettingsError):
        pass  # The start meets it, too, and says so.
    except Exception:
        error = traceback.format_exc()
    result = DryRunResult(pool.started, pool.finish(), error)
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
