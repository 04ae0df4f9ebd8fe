"""Put a core together from settings: runner, KV manager, scheduler, loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvasir.text.tokenizer import eos_token_ids
from kvasir_engine.core.loop import CoreLoop, StepWatcher
from kvasir_engine.grammar.compiler import GrammarCompiler
from kvasir_engine.grammar.libraries import make_compiler
from kvasir_engine.grammar.matcher import fill_together
from kvasir_engine.kv.block_pool import BlockListener
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.settings import EngineSettings
from kvasir_engine.startup.built_runner import BuiltRunner, StartupTimer
from kvasir_engine.startup.precompile.precompile import Precompiler

if TYPE_CHECKING:
    from kvasir_engine.parallel.executor import OnRankDeath

ListenerFactory = Callable[[Sequence[KVGroupSpec]], Sequence[BlockListener | None]]
"""Given the KV groups, a listener for each group's pool."""


@dataclass(slots=True)
class Core:
    """A core that is ready to take requests."""

    loop: CoreLoop
    built_runner: BuiltRunner
    grammars: GrammarCompiler | None = None
    """Compiles constraints; None where none can be enforced."""

    @property
    def scheduler(self) -> Scheduler:
        """Scheduler that takes the requests."""
        return self.loop.scheduler


def build_core(
    settings: EngineSettings,
    model_dir: Path,
    *,
    watcher: StepWatcher | None = None,
    prefix_seed: bytes = b"",
    listeners: ListenerFactory | None = None,
    on_rank_death: OnRankDeath | None = None,
) -> Core:
    """Load the model onto the device and make everything around it.

    `on_rank_death` is called with the reason when a tensor-parallel rank ends by itself. Raises
    ModelLoadError and SettingsError, whose messages say what to change.
    """
    built_runner = _build_runner(settings, model_dir, on_rank_death)
    kv = KVManager(
        built_runner.groups,
        built_runner.num_blocks,
        caching=settings.cache.enable_prefix_caching,
        prefix_seed=prefix_seed,
        listeners=listeners(built_runner.groups) if listeners else None,
    )
    scheduler = Scheduler(
        settings.scheduler,
        kv,
        max_model_len=built_runner.max_model_len,
        vocab_size=built_runner.vocab_size,
        seed=settings.seed,
        fill_masks=fill_together,
    )
    loop = CoreLoop(scheduler, built_runner.runner, overlap=settings.overlap, watcher=watcher)
    return Core(loop, built_runner, _make_grammars(settings, model_dir, built_runner))


def _make_grammars(
    settings: EngineSettings, model_dir: Path, built_runner: BuiltRunner
) -> GrammarCompiler | None:
    if settings.device == "sim" or settings.skip_tokenizer_init:
        return None
    compiler = make_compiler(
        Path(settings.tokenizer or model_dir),
        vocab_size=built_runner.vocab_size,
        eos_ids=eos_token_ids(model_dir, settings.hf_overrides),
        trust_remote_code=settings.trust_remote_code,
        library=settings.structured_outputs_backend,
    )
    has_gpu = bool(built_runner.memory)
    if compiler is not None and has_gpu:
        # On a CPU its seconds would be taken from the first requests.
        compiler.warm_up()
    return compiler


def _build_runner(
    settings: EngineSettings, model_dir: Path, on_rank_death: OnRankDeath | None
) -> BuiltRunner:
    # torch is imported only when it computes: a simulated engine starts without it.
    if settings.device == "sim":
        return _build_simulated(settings, model_dir, on_rank_death)
    timer = StartupTimer()
    with Precompiler(settings, model_dir) as precompiler:
        if settings.tensor_parallel_size > 1:
            from kvasir_engine.parallel.parallel_build import build_parallel_runner

            return build_parallel_runner(
                settings, model_dir, timer, precompiler, on_death=on_rank_death
            )
        with timer.phase("imports"):
            from kvasir_engine.startup.torch_build import build_torch_runner
        return build_torch_runner(settings, model_dir, timer, precompiler)


def _build_simulated(
    settings: EngineSettings, model_dir: Path, on_rank_death: OnRankDeath | None
) -> BuiltRunner:
    if settings.tensor_parallel_size > 1:
        from kvasir_engine.parallel.parallel_build import build_parallel_runner

        return build_parallel_runner(settings, model_dir, on_death=on_rank_death)
    from kvasir_engine.sim.sim_build import build_sim_runner

    return build_sim_runner(settings, model_dir)
