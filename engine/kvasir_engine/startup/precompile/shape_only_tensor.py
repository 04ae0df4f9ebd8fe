"""Minimal fake tensors: shapes and strides without data.

What torch's FakeTensorMode makes, less what a dry run has no use for: importing that one takes
longer than the dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class ShapeOnlyTensor(torch.Tensor):
    """Look like a tensor of a device; operations see the one on the meta device behind it."""

    meta: torch.Tensor

    @staticmethod
    def __new__(cls, meta: torch.Tensor, device: torch.device) -> Self:
        """`meta`'s shape, on `device`."""
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=device,
        )
        made.meta = meta
        return made

    def data_ptr(self) -> int:
        """Aligned as the tensor's would be, which decides how a kernel is compiled."""
        return int(self.storage_offset()) * self.element_size()

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        """Refuse operations outside of the mode."""
        raise RuntimeError(f"{func} met a tensor without values outside of a dry run.")


class ShapeOnlyMode(TorchDispatchMode):
    """Make tensors of one device, and what operations make of them, `ShapeOnlyTensor`."""

    def __init__(self, device: torch.device) -> None:
        """`device` may lack an index; a tensor's own does not."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = torch.device(device.type, device.index or 0)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To skip it takes importing it, which FakeTensorMode is slow for.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        """The operation on meta tensors where the device or its tensors are among the arguments;
        as it is elsewhere."""
        # Nothing is copied from memory that the device could read by itself.
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if not self._is_ours((args, kwargs)):
            return func(*args, **kwargs)
        if func._schema.is_mutable and func._schema.name.endswith("_"):
            return args[0]
        known: dict[int, ShapeOnlyTensor] = {}

        def behind(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("meta")
            if not isinstance(value, torch.Tensor):
                return value
            if not isinstance(value, ShapeOnlyTensor):
                return value.to("meta")
            known[id(value.meta)] = value
            return value.meta

        def in_front(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            # Some operations return an argument.
            same = known.get(id(value))
            return ShapeOnlyTensor(value, self._device) if same is None else same

        args, kwargs = _map(behind, (args, kwargs))
        # In inference mode no tensor could be made that later operations may change.
        with torch.inference_mode(False):
            own = _OWN.get(func)
            result = own(*args, **kwargs) if own else None
            return _map(in_front, func(*args, **kwargs) if result is None else result)

    def _is_ours(self, value: Any) -> bool:
        if isinstance(value, tuple | list):
            return any(map(self._is_ours, value))
        if isinstance(value, dict):
            return any(map(self._is_ours, value.values()))
        if isinstance(value, torch.device):
            return value.type == self._device.type
        return isinstance(value, ShapeOnlyTensor)


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Change the leaves of nested lists, tuples and dicts: torch's tree_map takes several
    times as long."""
    if isinstance(value, tuple | list):
        return type(value)(_map(change, each) for each in value)
    if isinstance(value, dict):
        return {name: _map(change, each) for name, each in value.items()}
    return change(value)


def _index(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor | None:
    first = indices[0]
    if len(indices) > 1 or first is None or first.dtype == torch.bool:
        return None
    return _contiguous(first.shape + tensor.shape[1:], tensor.dtype)


def _linear(x: torch.Tensor, weight: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return _contiguous(x.shape[:-1] + weight.shape[:1], x.dtype)


def _scaled_mm(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    of_weight: torch.Tensor,
    bias: torch.Tensor | None,
    of_result: torch.Tensor | None,
    out_dtype: torch.dtype,
    *_: Any,
) -> torch.Tensor:
    return _contiguous(x.shape[:-1] + weight.shape[1:], out_dtype)


def _empty_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor | None:
    plain = tensor.is_contiguous() and not any(options.values())
    return _contiguous(tensor.shape, tensor.dtype) if plain else None


def _arange(end: float, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor | None:
    return _contiguous([end], dtype or torch.int64) if isinstance(end, int) else None


def _contiguous(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


_OWN: dict[Any, Callable[..., torch.Tensor | None]] = {
    torch.ops.aten.arange.default: _arange,
    torch.ops.aten.empty_like.default: _empty_like,
    torch.ops.aten.index.Tensor: _index,
    torch.ops.aten.linear.default: _linear,
    torch.ops.aten._scaled_mm.default: _scaled_mm,
}
"""Operations for which torch's own functions import sympy, which takes as long as a third of a dry
run; None where torch has to say."""
