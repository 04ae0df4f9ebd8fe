"""Decide whether to precompile kernels, and remember which starts are already compiled. No torch:
the process that compiles begins before this one imports it."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kvasir_engine.device.kernel_cache import use_kernel_cache
from kvasir_engine.settings import EngineSettings

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

NVIDIA_DRIVER = Path("/dev/nvidiactl")
MIN_CORES = 4
"""With fewer, compiling side by side gains less than precompiling takes."""
MAX_WAIT_SECONDS = 60.0
"""Time that a start waits for kernels."""
COMMAND = [sys.executable, "-W", "ignore", "-m", "kvasir_engine.startup.precompile.dry_run"]


@dataclass(slots=True)
class GpuProperties:
    """Properties of a GPU that kernels are chosen and compiled for, named as torch names them."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    shared_memory_per_block_optin: int
    """Bytes that one program may use."""
    memory_clock_rate: int = 0
    """kHz."""
    memory_bus_width: int = 0
    """Bits."""


@dataclass(slots=True)
class DryRun:
    """Start that another process goes through without its GPU."""

    settings: EngineSettings
    model_dir: str
    parent: int
    """Process that waits for the kernels."""


@dataclass(slots=True)
class DryRunResult:
    """Kernels that a dry run asked for, and the traceback that ended it, if any."""

    kernels: int
    failed: int
    error: str = ""


class Precompiler:
    """Process that compiles a start's kernels while the start goes on; as a context, it leaves no
    process behind."""

    def __init__(self, settings: EngineSettings, model_dir: Path) -> None:
        self._settings = settings
        self._model_dir = model_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._mark: Path | None = None

    def __enter__(self) -> Self:
        """Begin where a GPU may be and no start like this one came before: the process then
        imports torch while this one does."""
        asked = self._settings.device != "cpu" and self._settings.kernels == "auto"
        gpu = asked and NVIDIA_DRIVER.exists()
        if gpu and not self._marks.exists():
            self._begin()
        return self

    def compile_for(self, device: torch.device) -> None:
        """Have the kernels for the GPU `device` compiled, unless that was done before."""
        import msgspec
        import torch

        properties = torch.cuda.get_device_properties(device)
        gpu = msgspec.convert(properties, GpuProperties, from_attributes=True)
        self._mark = self.mark(gpu.name)
        if self._process is None and not self._mark.exists():
            self._begin()
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # `finish` says that it has ended.
                self._process.stdin.write(msgspec.json.encode(gpu) + b"\n")

    def mark(self, gpu_name: str) -> Path:
        """Return the file that is there once such a start has all of its kernels in the cache."""
        return self._marks / gpu_name.replace("/", "_")

    def finish(self) -> None:
        """Wait for the kernels."""
        if self._process is None or self._mark is None:
            return
        # Not at the top: its cache has its place only now.
        import msgspec
        import triton

        # Meanwhile, what this process needs of Triton: its module in C, and the hash of itself.
        triton.runtime.driver.active.get_current_device()
        triton.runtime.cache.triton_key()
        try:
            said, _ = self._process.communicate(timeout=MAX_WAIT_SECONDS)
            result = msgspec.json.decode(said, type=DryRunResult)
        except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
            result = DryRunResult(0, 0, str(error))
        if result.error or result.failed:
            log.warning(
                "%d of %d kernels were not precompiled; each is compiled at its first launch. %s",
                result.failed,
                result.kernels,
                result.error,
            )
        elif result.kernels:
            log.info("%d kernels compiled.", result.kernels)
            self._remember(self._mark)

    def __exit__(self, *_: object) -> None:
        """End what was not waited for."""
        if self._process is not None:
            self._process.kill()
            with self._process:
                """Close its pipes and reap it."""

    def _begin(self) -> None:
        if len(os.sched_getaffinity(0)) < MIN_CORES:
            return
        import msgspec

        dry_run = DryRun(self._settings, str(self._model_dir), os.getpid())
        self._process = subprocess.Popen(
            [*COMMAND, msgspec.json.encode(dry_run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # It finds the packages that this process found, and cannot take the GPU's memory, nor
            # wait for it.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "CUDA_VISIBLE_DEVICES": "",
            },
        )

    @cached_property
    def _marks(self) -> Path:
        """Directory of the marks of starts like this one, a GPU each."""
        return use_kernel_cache() / "precompiled" / self._name()

    def _name(self) -> str:
        """Return a hash of what determines, beside the GPU, which kernels a start launches."""
        config = self._model_dir / "config.json"
        scheduler = self._settings.scheduler
        facts = (
            version("torch"),
            _sources(),
            config.read_bytes() if config.is_file() else b"",
            self._settings.overrides,
            self._settings.dtype,
            self._settings.model_impl,
            self._settings.max_model_len,
            self._settings.enforce_eager,
            self._settings.tensor_parallel_size,
            self._settings.cache.block_size,
            scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens,
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def _remember(self, mark: Path) -> None:
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError as error:
            log.warning("the next start compiles ahead again: %s.", error)


@cache
def _sources() -> str:
    """Return a hash of the package's source files."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[2].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
