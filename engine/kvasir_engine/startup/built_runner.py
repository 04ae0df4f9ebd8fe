"""A built runner and what the core needs to know about it. No torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvasir.models.model_shape import ModelShape
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.settings import EngineSettings, SettingsError
from kvasir_engine.step_runner import Runner


@dataclass(slots=True)
class BuiltRunner:
    """A runner with the facts that scheduling depends on."""

    runner: Runner
    groups: tuple[KVGroupSpec, ...]
    num_blocks: list[int]
    max_model_len: int
    vocab_size: int
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of the start."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes of the GPU by owner; empty on a CPU."""
    dtype: str = ""
    """Data type that the model computes in, as --dtype names it."""
    quantization: str | None = None
    """Quantisation method of its weights, as its config names it."""


class StartupTimer:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as `name`."""
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 4)


def context_length(settings: EngineSettings, shape: ModelShape) -> int:
    """The context asked for, or the model's own. Raises SettingsError when it is impossible."""
    own = shape.max_position_embeddings
    wanted = settings.max_model_len or own
    if wanted > own:
        raise SettingsError(
            f"--max-model-len {wanted} is longer than the model's own context of {own} tokens."
        )
    return wanted
