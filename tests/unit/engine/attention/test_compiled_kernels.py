"""Launches that look for nothing."""

from __future__ import annotations

from typing import Any

from kvasir_engine.attention.compiled_kernels import CompiledKernels


class Kernel:
    """A kernel in the place of Triton's, which needs a GPU to be compiled."""

    def __init__(self, *, interpreted: bool = False) -> None:
        self.compilations: list[tuple[Any, ...]] = []
        self.launches: list[tuple[Any, ...]] = []
        self._interpreted = interpreted

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def compile_and_launch(*arguments: Any, **options: Any) -> Any:
            self.compilations.append((grid, arguments, options))
            return None if self._interpreted else {grid: self._launch(grid), (9, 1, 1): self._last}

        return compile_and_launch

    def _launch(self, grid: tuple[int, int, int]) -> Any:
        return lambda *arguments: self.launches.append((grid, arguments))

    def _last(self, *arguments: Any) -> None:
        self.launches.append(((9, 1, 1), arguments))


def test_a_kind_is_compiled_once_and_launched_with_its_arguments() -> None:
    kernel = Kernel()
    kernels = CompiledKernels(kernel)
    kernels.launch((2, 1, 1), ("a",), (1, 2), num_warps=4)
    kernels.launch((9, 1, 1), ("a",), (3, 2), num_warps=4)
    assert kernel.compilations == [((2, 1, 1), (1, 2), {"num_warps": 4})]
    assert kernel.launches == [((9, 1, 1), (3, 2))]


def test_another_kind_is_compiled_anew_and_so_is_what_was_forgotten() -> None:
    kernel = Kernel()
    kernels = CompiledKernels(kernel)
    kernels.launch((2, 1, 1), ("a",), (1,))
    kernels.launch((2, 1, 1), ("b",), (1,))
    assert kernels.kinds() == [("a",), ("b",)]
    kernels.forget()
    kernels.launch((2, 1, 1), ("a",), (1,))
    assert len(kernel.compilations) == 3
    assert not kernel.launches


def test_what_is_interpreted_is_never_kept() -> None:
    kernel = Kernel(interpreted=True)
    kernels = CompiledKernels(kernel)
    for _ in range(2):
        kernels.launch((2, 1, 1), ("a",), (1,))
    assert len(kernel.compilations) == 2
    assert not kernels.kinds()
