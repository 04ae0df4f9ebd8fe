"""Compile kernels into Triton's cache, each in a process of its own.

A forked process has the kernel's source and arguments at hand, and much of the compiler holds the
interpreter's lock. It never touches the device: what is compiled is written into the cache, where
the launch finds it.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future
from multiprocessing import get_context
from typing import Any

import triton

from kvasir_engine.parent_death import die_with_parent

POLL_SECONDS = 0.005
NICENESS = 10
"""The start itself goes first."""


class CompilePool(Executor):
    """Executor that triton.AsyncCompileMode hands its compilations to."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        # More at once would take memory and gain nothing.
        self._turns = get_context("fork").Semaphore(len(os.sched_getaffinity(0)))
        self.started = 0
        """Kernels that were asked for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin `fn` in another process. The result, which nobody launches, is None at once."""
        parent = os.getpid()
        with warnings.catch_warnings():
            # Of Python, that locks of other threads stay locked in a fork. Compiling shares none
            # with them, and `finish` ends what hangs nevertheless.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            self._run(parent, lambda: fn(*args, **kwargs))
        self._running.add(child)
        self.started += 1
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def finish(self, seconds: float) -> int:
        """Wait for all; how many failed or were ended since they took longer than `seconds`.

        Such a kernel is compiled where it is launched, or fails there and says why.
        """
        failed, deadline = 0, time.monotonic() + seconds
        while self._running:
            if time.monotonic() > deadline:
                for child in self._running:
                    os.kill(child, signal.SIGKILL)
            for child in list(self._running):
                status = _status(child)
                if status is not None:
                    self._running.remove(child)
                    failed += status != 0
            time.sleep(POLL_SECONDS)
        return failed

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


def _status(child: int) -> int | None:
    """Return the exit status of a process that has ended, else None."""
    try:
        ended, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:
        return 0  # Whoever embeds the engine has children's ends taken note of; how, is not known.
    return status if ended else None
