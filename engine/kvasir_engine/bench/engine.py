"""Times an engine's steps by kind, and says how much of each the GPU stood idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvasir_engine.bench.steps import WARM_STEPS, Steps, StepTime
from kvasir_engine.bench.trace import GpuTime, gpu_time
from kvasir_engine.core.build import build_core
from kvasir_engine.settings import EngineSettings, SettingsError
from kvasir_engine.startup.torch_build import pick_device

MEASURED = 24
"""Steps of a kind that are timed."""
OWN_TOKENS = 64
"""Tokens of a prompt behind a shared prefix."""
TRACED = 8
"""Steps of a kind that are traced, with another few before them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the steps."""

    batch: int
    """Decodes of a step."""
    context: int
    """Tokens of each decode's prompt, and of the prompt that a mixed step computes."""
    prompt: int
    """Tokens of a prompt, where steps compute prompts only."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one kind of step."""

    kind: str
    time: StepTime
    gpu: GpuTime | None
    """None when no trace was asked for."""


def bench_engine(
    settings: EngineSettings,
    model_dir: Path,
    shape: Shape,
    traces: Path | None,
    announce: Callable[[str], None],
) -> Iterator[StepResult]:
    """Decodes, decodes that share a prefix, prompts, and both in one step; traces go to the
    directory `traces`. `announce` is told each kind before it is measured."""
    if traces is not None and pick_device(settings.device).type != "cuda":
        raise SettingsError("--profile traces a GPU; leave it out, or use --device cuda.")
    steps = Steps(build_core(settings, model_dir))
    kinds = (
        ("decode", partial(_decodes, steps, shape)),
        ("decode, shared prefix", partial(_sharing, steps, shape)),
        ("prefill", partial(_prompts, steps, shape)),
        ("mixed", partial(_mixed, steps, shape)),
    )
    for kind, prepare in kinds:
        announce(kind)
        each = prepare()
        steps.run(WARM_STEPS, each)
        measured = steps.run(MEASURED, each)
        gpu = None
        if traces is not None:
            file = traces / f"{kind.replace(', ', '-').replace(' ', '-')}.json"
            with _traced(file):
                steps.run(TRACED, each)
            gpu = gpu_time(file)
        yield StepResult(kind, measured, gpu)
        steps.finish()


def _decodes(steps: Steps, shape: Shape) -> None:
    for _ in range(shape.batch):
        steps.add(shape.context, _outputs(shape))
    steps.until_decoding()


def _prompts(steps: Steps, shape: Shape) -> Callable[[], None]:
    a_step = max(1, min(shape.batch, steps.budget // shape.prompt))
    return partial(steps.fill_queue, a_step, shape.prompt)


def _sharing(steps: Steps, shape: Shape) -> None:
    steps.common = steps.prompt(shape.prompt)
    steps.add(1, 1)
    steps.run_out()
    for _ in range(shape.batch):
        steps.add(OWN_TOKENS, _outputs(shape))
    steps.until_decoding()
    steps.common = []


def _mixed(steps: Steps, shape: Shape) -> Callable[[], None]:
    # A prompt's row and its blocks return two steps after its only token.
    for _ in range(max(1, shape.batch - 4)):
        steps.add(shape.context, _outputs(shape))
    steps.until_decoding()
    return partial(steps.fill_queue, 1, shape.context)


def _outputs(shape: Shape) -> int:
    """Tokens that outlast the other prompts, of which a step computes one at least, and the
    measurement."""
    return shape.batch + 4 * WARM_STEPS + MEASURED + TRACED


@contextmanager
def _traced(file: Path) -> Iterator[None]:
    from torch.profiler import ProfilerActivity, profile

    # Without the CPU's operations, whose recording would slow the launches down.
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield
    profiler.export_chrome_trace(str(file))


def table(results: list[StepResult], kernels: int = 12) -> list[str]:
    """Lines of Markdown: a row a kind, then each kind's longest kernels."""
    lines = [
        "| step | ms | of the loop's thread, ms | GPU idle |",
        "|---|---|---|---|",
    ]
    for each in results:
        idle = "" if each.gpu is None else f"{each.gpu.idle_share:.1%}"
        lines.append(f"| {each.kind} | {each.time.wall:.2f} | {each.time.host:.2f} | {idle} |")
    for each in results:
        if each.gpu is not None:
            lines += ["", *_kernel_table(each.kind, each.gpu, kernels)]
    return lines


def _kernel_table(kind: str, gpu: GpuTime, most: int) -> list[str]:
    lines = [f"| {kind}: kernel | calls a step | us a step | share |", "|---|---|---|---|"]
    for kernel in gpu.kernels[:most]:
        name = kernel.name.replace("|", "/")[:80]
        share = kernel.microseconds / gpu.busy_us
        lines.append(
            f"| `{name}` | {kernel.calls / TRACED:.1f} | {kernel.microseconds / TRACED:.1f} "
            f"| {share:.1%} |"
        )
    return lines
