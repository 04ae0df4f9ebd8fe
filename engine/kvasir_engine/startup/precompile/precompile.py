"""Decide whether to precompile kernels, and remember which starts are already compiled."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from kvasir_engine.device.capability import kernels_run_on, use_kernel_cache
from kvasir_engine.device.collectives import tensor_parallel
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.settings import EngineSettings, SettingsError

if TYPE_CHECKING:
    from kvasir_engine.startup.precompile.compile_pool import CompilePool

log = logging.getLogger(__name__)

MIN_CORES = 4
"""With fewer, compiling side by side gains less than precompiling takes."""
MAX_WAIT_SECONDS = 60.0
"""That a start waits for kernels; what is not compiled by then is compiled where it is launched."""


class Precompiler:
    """Kernels that other processes compile while a start goes on; as a context, it leaves none of
    them behind."""

    def __init__(self, settings: EngineSettings, model_dir: Path, device: torch.device) -> None:
        self._settings = settings
        self._model_dir = model_dir
        self._device = device
        self._compiling: CompilePool | None = None
        self._complete = False
        """True once precompiling has finished."""

    @cached_property
    def mark(self) -> Path:
        """A file that is there once a start like this one has all its kernels in the cache."""
        use_kernel_cache()
        return Path(os.environ["TRITON_CACHE_DIR"]) / "precompiled" / self._name()

    def precompile(self, launches: Callable[[], None]) -> None:
        """Run `launches`, which launches all that the start will, and have what it asks for
        compiled, unless that was done before or does not pay."""
        if not self._pays() or self.mark.exists():
            return
        # Not at the top: they import triton, whose cache has its place only now.
        from kvasir_engine.startup.precompile.compile_pool import CompilePool
        from kvasir_engine.startup.precompile.fake_device import faked_device

        try:
            self._compiling = CompilePool()
            with faked_device(self._device, self._compiling):
                launches()
        except (ModelLoadError, SettingsError):
            return  # The start meets it, too, and says so.
        except Exception as error:
            log.warning("kernels are compiled where they are launched: %s.", error, exc_info=True)
            return
        self._complete = True

    def finish(self) -> None:
        """Wait for the kernels."""
        if self._compiling is None:
            return
        failed, asked = self._compiling.finish(MAX_WAIT_SECONDS), self._compiling.started
        if failed:
            log.warning(
                "%d of %d kernels were not precompiled; each is compiled at its first launch.",
                failed,
                asked,
            )
        else:
            log.info("%d kernels compiled.", asked)
            if self._complete:
                self._remember()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what was not waited for."""
        if self._compiling is not None:
            self._compiling.finish(0.0)

    def _pays(self) -> bool:
        cores = len(os.sched_getaffinity(0))
        alone = tensor_parallel().size == 1
        return kernels_run_on(self._device) and alone and cores >= MIN_CORES

    def _name(self) -> str:
        """Return a hash of everything that determines which kernels a start launches."""
        config = self._model_dir / "config.json"
        scheduler = self._settings.scheduler
        facts = (
            torch.cuda.get_device_name(self._device),
            torch.__version__,
            _sources(),
            config.read_bytes() if config.is_file() else b"",
            self._settings.dtype,
            self._settings.model_impl,
            self._settings.max_model_len,
            self._settings.enforce_eager,
            self._settings.cache.block_size,
            scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens,
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def _remember(self) -> None:
        try:
            self.mark.parent.mkdir(parents=True, exist_ok=True)
            self.mark.touch()
        except OSError as error:
            log.warning("the next start compiles ahead again: %s.", error)


@cache
def _sources() -> str:
    """Return a hash of the package's source files."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[2].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
