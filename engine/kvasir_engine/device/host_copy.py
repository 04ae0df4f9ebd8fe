"""Copies of a step's results to the host that run beside the next step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvasir_engine.device.collectives import tensor_parallel
from kvasir_engine.device.device_errors import seen_at_once


class HostCopy:
    """Tensors on their way to pinned host memory; `wait` is the only blocking call.

    On a CPU device there is nothing to copy, and what tensor-parallel ranks other than 0 sample
    nobody reads: their copies are made by `wait` itself.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor_parallel().rank == 0 and any(tensor.is_cuda for tensor in tensors.values()):
            tensors = {name: self._start(tensor) for name, tensor in tensors.items()}
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        self.tensors = tensors

    @staticmethod
    def _start(tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def wait(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays, once they are here."""
        if self._event is not None:
            with seen_at_once():
                self._event.synchronize()
        return {name: np.asarray(tensor.cpu().numpy()) for name, tensor in self.tensors.items()}
