"""Watch over code that may only launch work on the device, and never look at its results.

A CUDA graph repeats launches. Code that waits for the device, to read a number or to learn how many
elements there are, cannot be captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class WaitsForDeviceError(Exception):
    """An operation waits for the device; the message names it."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Refuse operations whose result the CPU must know."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if _depends_on_values(func, args):
            raise WaitsForDeviceError(f"{func} depends on values")
        return func(*args, **(kwargs or {}))


def _depends_on_values(func: Any, args: Sequence[Any]) -> bool:
    if func is torch.ops.aten.index.Tensor:
        # Its size depends on values only if these say which elements to take.
        return any(index is not None and index.dtype is torch.bool for index in args[1])
    return (
        torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    )


@contextmanager
def only_launches(device: torch.device) -> Iterator[None]:
    """Raise `WaitsForDeviceError` where the body waits for `device`."""
    with _Watch():  # type: ignore[no-untyped-call]
        if device.type != "cuda":
            yield
            return
        # Copies from the host wait, too, which only the driver's side tells.
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            raise WaitsForDeviceError(str(error)) from error
        finally:
            torch.cuda.set_sync_debug_mode(before)
