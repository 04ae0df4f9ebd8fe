"""Compile kernels into Triton's cache, each in a process of its own.

A forked process has the kernel's source and arguments at hand, and much of the compiler holds the
interpreter's lock. What is compiled is written into the cache, where the launch finds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from multiprocessing import get_context
from typing import Any

import triton

from kvasir_engine.parent_death import die_with_parent

NICENESS = 10
"""The start itself goes first."""


class CompilePool(Executor):
    """Executor that triton.AsyncCompileMode hands its compilations to."""

    def __init__(self) -> None:
        # More at once would take memory and gain nothing.
        self._turns = get_context("fork").Semaphore(len(os.sched_getaffinity(0)))
        self._children: list[int] = []

    @property
    def started(self) -> int:
        """Number of kernels that were asked for."""
        return len(self._children)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin `fn` in another process. The result, which nobody launches, is None at once."""
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            self._run(parent, lambda: fn(*args, **kwargs))
        self._children.append(child)
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def finish(self) -> int:
        """Wait for all, and return how many failed.

        Such a kernel is compiled where it is launched, or fails there and says why.
        """
        return sum(os.waitpid(child, 0)[1] != 0 for child in self._children)

    def _run(self, parent: int, compile_it: Callable[[], Any]) -> None:
        """In the child: it leaves without any of the parent's clean-up."""
        status = 1
        try:
            die_with_parent(parent)
            os.nice(NICENESS)
            with self._turns:
                kernel = compile_it()
                # What launches it is compiled, too: some lines of C for each kind of arguments.
                triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
            status = 0
        finally:
            os._exit(status)
