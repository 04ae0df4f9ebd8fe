"""Compilations: one for all that ask for it, bounded in memory, number and time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kvasir_engine.grammar import compiler as compiler_module
from kvasir_engine.grammar.compiler import THREADS, CompilerBusyError, GrammarCompiler
from kvasir_engine.grammar.constraint import Constraint, ConstraintKind
from kvasir_engine.grammar.constraint_error import ConstraintError

SECONDS = 60


class Sized:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def matcher(self, stop_ids: Sequence[int]) -> Any:
        raise NotImplementedError


class Backend:
    """Compiles a number to a grammar of so many bytes, once the gate is open."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def compile(self, constraint: Constraint) -> Sized:
        assert self.gate.wait(SECONDS)
        self.compiled.append(constraint.text)
        if constraint.text == "bad":
            raise ConstraintError("it is bad")
        return Sized(int(constraint.text))


def of(text: object) -> Constraint:
    return Constraint(ConstraintKind.REGEX, str(text))


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def make(backend: Backend) -> Iterator[Callable[..., GrammarCompiler]]:
    made: list[GrammarCompiler] = []

    def make(**how: Any) -> GrammarCompiler:
        made.append(GrammarCompiler(lambda: backend, **how))
        return made[-1]

    yield make
    backend.gate.set()
    for each in made:
        each.close()


def test_a_grammar_is_compiled_once_for_all(backend: Backend, make: Any) -> None:
    compiler = make()
    called = threading.Semaphore(0)
    first = compiler.compile(of(1), done=called.release)
    assert first.grammar.result(SECONDS).num_bytes == 1
    assert compiler.compile(of(1), done=called.release) is first
    assert called.acquire(timeout=SECONDS)
    assert called.acquire(timeout=SECONDS)
    assert backend.compiled == ["1"]


def test_those_asked_for_longest_ago_are_forgotten(backend: Backend, make: Any) -> None:
    compiler = make(max_bytes=100)
    for size in (40, 50, 40, 30, 50, 40):
        compiler.compile(of(size)).grammar.result(SECONDS)
    # With 30 they are 120: of these, 40 was asked for longest ago when 50 was asked for again.
    assert backend.compiled == ["40", "50", "30", "40"]


def test_what_failed_is_tried_again(backend: Backend, make: Any) -> None:
    compiler = make()
    for _ in range(2):
        with pytest.raises(ConstraintError, match="it is bad"):
            compiler.compile(of("bad")).grammar.result(SECONDS)
    assert backend.compiled == ["bad", "bad"]


def test_only_so_many_wait(backend: Backend, make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(compiler_module, "MAX_WAITING", 3)
    compiler = make()
    backend.gate.clear()
    running = [compiler.compile(of(i)) for i in range(THREADS)]
    while any(each.effort is None for each in running):
        threading.Event().wait(0.001)
    waiting = [compiler.compile(of(10 + i)) for i in range(3)]
    with pytest.raises(CompilerBusyError):
        compiler.compile(of(99))
    assert compiler.compile(of(10)) is waiting[0]
    backend.gate.set()
    assert waiting[-1].grammar.result(SECONDS).num_bytes == 12


@pytest.mark.parametrize("limit", ["MAX_SECONDS", "MAX_CPU_SECONDS"])
def test_the_time_of_one_is_counted_from_its_beginning(
    backend: Backend, make: Any, monkeypatch: Any, limit: str
) -> None:
    compiler = make()
    backend.gate.clear()
    compilation = compiler.compile(of(1))
    while compilation.effort is None:
        threading.Event().wait(0.001)
    assert not compilation.is_overdue
    monkeypatch.setattr(compiler_module, limit, 0.0)
    assert compilation.is_overdue


def test_a_backend_that_cannot_be_made_is_said_and_tried_again(make: Any) -> None:
    tries = []

    def fails() -> Any:
        tries.append(1)
        raise ImportError("no library")

    compiler = GrammarCompiler(fails)
    for _ in range(2):
        with pytest.raises(ImportError, match="no library"):
            compiler.compile(of(1)).grammar.result(SECONDS)
    assert len(tries) == 2
    compiler.close()


def test_the_library_is_loaded_before_a_grammar_is_asked_for(backend: Backend) -> None:
    loaded = threading.Event()
    made = []

    def load() -> Backend:
        made.append(backend)
        loaded.set()
        return backend

    compiler = GrammarCompiler(load)
    compiler.warm_up()
    assert loaded.wait(SECONDS)
    compiler.compile(of(1)).grammar.result(SECONDS)
    assert made == [backend]
    compiler.close()
