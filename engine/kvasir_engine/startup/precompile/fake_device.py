"""Fake device for warm-up compilation: shape-only tensors, kernels compiled but not launched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from triton.runtime.jit import JITFunction

from kvasir_engine.device import upload
from kvasir_engine.device.host_copy import HostCopy
from kvasir_engine.sampling import sampler
from kvasir_engine.startup.precompile.shape_only_tensor import ShapeOnlyMode


class FakeGraph:
    """torch.cuda.CUDAGraph of launches that do not happen."""

    def capture_begin(self, **_: Any) -> None:
        """Nothing is recorded."""

    def capture_end(self) -> None:
        """Nothing was."""

    def pool(self) -> None:
        """No memory."""

    def replay(self) -> None:
        """Nothing is launched."""


class FakeEvent:
    """Fake torch.cuda.Event with an infinite elapsed time, so that few graphs are captured."""

    def __init__(self, **_: Any) -> None:
        """Take any arguments, for no stream."""

    def record(self) -> None:
        """Nothing comes before it."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, _: FakeEvent) -> float:
        """Milliseconds."""
        return math.inf


@contextmanager
def faked_device(device: torch.device, compiler: Executor) -> Iterator[None]:
    """Have `compiler` compile what the body launches on `device`, and launch nothing."""
    launch = JITFunction.run

    def ask_for(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **kwargs)

    def nothing_copied(copy: HostCopy) -> dict[str, npt.NDArray[Any]]:
        return {
            name: np.zeros(tensor.shape, dtype=str(tensor.dtype).removeprefix("torch."))
            for name, tensor in copy.tensors.items()
        }

    def not_copied(host: torch.Tensor, *_: Any) -> torch.Tensor:
        return host

    with (
        _replaced(JITFunction, run=ask_for),
        _replaced(torch.cuda, CUDAGraph=FakeGraph, Event=FakeEvent),
        _replaced(upload, pack=not_copied, pinned=not_copied),
        # Torch's own operations only, which take long to go through without values.
        _replaced(sampler, token_logprobs=lambda *_: None),
        _replaced(HostCopy, wait=nothing_copied),
        ShapeOnlyMode(device),
        triton.AsyncCompileMode(compiler),
    ):
        yield


@contextmanager
def _replaced(owner: Any, **others: Callable[..., Any]) -> Iterator[None]:
    """Call `others` in place of what `owner` names so, in this thread: another one's launches are
    real."""
    own = {name: getattr(owner, name) for name in others}
    for name, other in others.items():
        setattr(owner, name, _in_this_thread(other, own[name]))
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(owner, name, value)


def _in_this_thread(here: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    thread = get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        return (here if get_ident() == thread else elsewhere)(*args, **kwargs)

    return call
