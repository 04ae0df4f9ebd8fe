"""Say whether a start's precompilation asked for all the kernels that the start launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import triton
from judging import Row

from kvasir_engine.settings import EngineSettings
from kvasir_engine.startup.precompile.precompile import Precompiler

COLUMN = "compiled ahead"
compiled_here: list[str] = []
"""Kernels that this process compiled itself, each when it was first launched."""


def listen() -> None:
    """Note from now on what is compiled here."""

    def note(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled_here.append(src.fn.__name__)

    triton.knobs.compilation.listener = note


def note_ahead(row: Row, settings: EngineSettings, model_dir: Path) -> None:
    """Note the outcome of the first start with these settings; a fault where a kernel was not
    compiled ahead."""
    if not Precompiler(settings, model_dir).mark(torch.cuda.get_device_name()).exists():
        row.faults.append(f"{row.name}, {COLUMN}: it did not happen")
    if compiled_here:
        row.faults.append(f"{row.name}, {COLUMN}: not {', '.join(compiled_here)}")
    row.outcome[COLUMN] = f"**not {len(compiled_here)}**" if compiled_here else "all"
