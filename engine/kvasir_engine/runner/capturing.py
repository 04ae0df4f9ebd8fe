"""What every capture of a CUDA graph needs around it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def capturing() -> Iterator[None]:
    """A stream of its own, after and before the current one's work.

    No garbage is collected meanwhile: a graph that is freed during another one's capture breaks it.
    torch.cuda.graph() collects it before every single one, which takes longer than the capture.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        if collects:
            gc.enable()
    torch.cuda.current_stream().wait_stream(stream)
