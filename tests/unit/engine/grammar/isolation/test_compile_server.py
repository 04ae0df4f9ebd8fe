"""One compilation in a fork: it ends in time, in bounds, and leaves nothing behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvasir_engine.grammar.compiler import MAX_CPU_SECONDS
from kvasir_engine.grammar.constraint import Constraint, ConstraintKind
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.isolation import compile_server
from kvasir_engine.grammar.isolation.compile_server import TOO_LARGE, TOO_LONG, answer

SECONDS = 60
ANY = Constraint(ConstraintKind.REGEX, "a")


class Written:
    def __init__(self, text: str) -> None:
        self._text = text

    def written(self) -> str:
        return self._text


class Backend:
    """Compiles by a function."""

    def __init__(self, work: Callable[[], str]) -> None:
        self._work = work

    def compile(self, constraint: Constraint) -> Written:
        assert constraint is ANY
        return Written(self._work())


def asked(work: Callable[[], Any], seconds: float = SECONDS) -> compile_server.Answer:
    return answer(Backend(work), ANY, seconds=seconds)  # type: ignore[arg-type]


def refuses() -> str:
    raise ConstraintError("it is bad")


@pytest.fixture(autouse=True)
def nothing_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_server, "QUICK_SECONDS", 0.0)


def test_a_grammar_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(lambda: "compiled") == ("compiled", "")
    monkeypatch.setattr(compile_server, "QUICK_SECONDS", SECONDS)
    assert asked(lambda: "compiled") == ("", "")
    assert asked(refuses) == (None, "it is bad")


def test_what_takes_too_long_is_killed() -> None:
    read, write = os.pipe()
    assert asked(threading.Event().wait, seconds=0.0) == TOO_LONG
    os.close(write)
    assert os.read(read, 1) == b"", "the fork, which had the pipe too, is no more"
    os.close(read)


def computes_for_ever() -> str:
    while True:
        pass


def test_time_that_a_busy_machine_takes_is_not_counted() -> None:
    assert asked(computes_for_ever) == TOO_LONG
    wait = 2 * MAX_CPU_SECONDS
    assert asked(lambda: str(threading.Event().wait(wait))) == ("False", "")


@pytest.mark.parametrize(
    "work",
    [
        lambda: bytearray(2 * compile_server.MAX_MEMORY),
        lambda: os._exit(1),
        lambda: "x" * (compile_server.MAX_GRAMMAR_BYTES + 1),
    ],
)
def test_what_takes_too_much_memory_is_refused(work: Callable[[], Any]) -> None:
    assert asked(work) == TOO_LARGE
