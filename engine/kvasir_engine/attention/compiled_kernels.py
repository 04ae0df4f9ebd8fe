"""Launches of Triton kernels without Triton's own look for what was compiled.

Triton binds the arguments of each launch anew and looks at each global name of the kernel's source:
60 us of the CPU's, which a step that no CUDA graph replays spends in each of its layers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class CompiledKernels:
    """Compiled code of one kernel, by kind of launch."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[tuple[Hashable, ...], Any] = {}

    def launch(
        self,
        grid: tuple[int, int, int],
        key: tuple[Hashable, ...],
        arguments: tuple[Any, ...],
        **options: Any,
    ) -> None:
        """Launch the kernel with all its arguments, in their order, constants included.

        `key` must tell apart whatever Triton compiles differently: constants, `options`, types, and
        which pointers and numbers are multiples of 16, where the kernel is specialised on that.
        """
        compiled = self._compiled.get(key)
        if compiled is not None:
            compiled[grid](*arguments)
            return
        compiled = self._kernel[grid](*arguments, **options)
        if compiled is not None:  # Triton's interpreter compiles nothing.
            self._compiled[key] = compiled

    def kinds(self) -> list[tuple[Any, ...]]:
        """Return the keys of what was compiled."""
        return list(self._compiled)

    def forget(self) -> None:
        """Have each kind compiled, or looked for, again."""
        self._compiled.clear()
