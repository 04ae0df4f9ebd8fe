"""Compile grammars beside the core's steps, each once; keep the last ones."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from kvasir_engine.grammar.constraint import Constraint
from kvasir_engine.grammar.matcher import Grammar

log = logging.getLogger(__name__)

CACHE_BYTES = 256 << 20
"""Memory of grammars that are kept for further requests."""
THREADS = 2
MAX_WAITING = 64
"""Compilations that may wait for a thread."""
MAX_CPU_SECONDS = 1
"""CPU time that one compilation may take: what is refused does not depend on other load."""
MAX_SECONDS = 10.0
"""Time that one compilation may take on a machine that gives it little of its CPU."""


class SizedGrammar(Grammar, Protocol):
    """Grammar that knows its size."""

    num_bytes: int


class Backend(Protocol):
    """Library that compiles."""

    def compile(self, constraint: Constraint) -> SizedGrammar:
        """Return a constraint's grammar. Raises ConstraintError."""
        ...


class Effort:
    """Time that a thread has spent since it made this."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._cpu = time.clock_gettime(self._clock)
        self._began = time.monotonic()

    @property
    def is_too_much(self) -> bool:
        """True if a compilation may not take as long; for any thread, while that one lives."""
        if time.monotonic() - self._began > MAX_SECONDS:
            return True
        return time.clock_gettime(self._clock) - self._cpu > MAX_CPU_SECONDS


@dataclass(slots=True, eq=False)
class Compilation:
    """A grammar that is there, or will be."""

    grammar: Future[SizedGrammar] = field(default_factory=Future)
    effort: Effort | None = None
    """That of the thread that has taken it up."""

    @property
    def is_overdue(self) -> bool:
        """True if it takes longer than any may. Ask before it is done."""
        effort = self.effort
        return effort is not None and effort.is_too_much


class CompilerBusyError(Exception):
    """Too many compilations wait."""


class GrammarCompiler:
    """Compilations by constraint. `compile` is called on one thread."""

    def __init__(
        self, make_backend: Callable[[], Backend], *, max_bytes: int = CACHE_BYTES
    ) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "grammar")
        self._max_bytes = max_bytes
        self._known: OrderedDict[Constraint, Compilation] = OrderedDict()
        self._make_backend = make_backend
        self._made = threading.Lock()
        self._backend: Backend | None = None

    def warm_up(self) -> None:
        """Have the library loaded, which takes seconds, before the first request needs it."""
        self._threads.submit(self._loaded)

    def compile(
        self, constraint: Constraint, *, done: Callable[[], None] | None = None
    ) -> Compilation:
        """Return the compilation of a constraint, begun if need be; `done` is called on any thread
        once it has ended. Raises CompilerBusyError."""
        found = self._known.get(constraint)
        if found is None or _has_failed(found):
            if sum(each.effort is None for each in self._known.values()) >= MAX_WAITING:
                raise CompilerBusyError
            found = self._known[constraint] = Compilation()
            self._threads.submit(self._run, found, constraint)
        self._known.move_to_end(constraint)
        self._forget()
        if done is not None:
            found.grammar.add_done_callback(lambda _: done())
        return found

    def close(self) -> None:
        """Begin no more of what waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, compilation: Compilation, constraint: Constraint) -> None:
        try:
            backend = self._loaded()
            compilation.effort = Effort()
            compilation.grammar.set_result(backend.compile(constraint))
        except Exception as error:
            compilation.grammar.set_exception(error)

    def _loaded(self) -> Backend:
        with self._made:
            if self._backend is None:
                began = time.monotonic()
                self._backend = self._make_backend()
                log.info("grammars are ready after %.1f s", time.monotonic() - began)
            return self._backend

    def _forget(self) -> None:
        """Forget the grammars that were asked for longest ago, until the others fit."""
        ended = [key for key, each in self._known.items() if each.grammar.done()]
        sizes = {key: _num_bytes(self._known[key]) for key in ended}
        left = sum(sizes.values())
        for key in ended:
            if left <= self._max_bytes:
                return
            left -= sizes[key]
            del self._known[key]


def _has_failed(compilation: Compilation) -> bool:
    return compilation.grammar.done() and compilation.grammar.exception() is not None


def _num_bytes(compilation: Compilation) -> int:
    return 0 if _has_failed(compilation) else compilation.grammar.result().num_bytes
