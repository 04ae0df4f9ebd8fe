"""Requests that wait for a grammar: who goes on, who is refused, who is forgotten."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from kvasir_engine.core.grammar_requests import GrammarRequests
from kvasir_engine.grammar import compiler as compiler_module
from kvasir_engine.grammar.compiler import Compilation, CompilerBusyError, Effort
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.messages import Rejected
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams

GRAMMAR: Any = object()


class Compiler:
    """Hands out what the test ends."""

    def __init__(self) -> None:
        self.compilation = Compilation()
        self.busy = False

    def compile(self, constraint: Any, *, done: Any) -> Compilation:
        assert constraint.key == "regex:a"
        if self.busy:
            raise CompilerBusyError
        self.compilation.grammar.add_done_callback(lambda _: done())
        return self.compilation


def request(handle: int = 1, client: int = 0) -> EngineRequest:
    return EngineRequest("r", handle, [1], SamplingParams(), client=client, constraint="regex:a")


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def woken() -> list[int]:
    return []


@pytest.fixture
def requests(compiler: Any, woken: list[int]) -> GrammarRequests:
    return GrammarRequests(compiler, lambda: woken.append(1))


def test_a_request_goes_on_with_its_grammar(
    requests: GrammarRequests, compiler: Compiler, woken: list[int]
) -> None:
    assert requests.begin(request()) is None
    assert (len(requests), requests.take_ended()) == (1, [])
    compiler.compilation.grammar.set_result(GRAMMAR)
    assert woken == [1]
    assert requests.take_ended() == [(request(), GRAMMAR)]
    assert len(requests) == 0


def test_a_constraint_that_does_not_compile_is_a_400(
    requests: GrammarRequests, compiler: Compiler
) -> None:
    requests.begin(request())
    compiler.compilation.grammar.set_exception(ConstraintError("it is bad"))
    [(_, refusal)] = requests.take_ended()
    sentence = "The form that the output is to have cannot be enforced: it is bad."
    assert refusal == Rejected(1, 400, sentence, "structured_outputs")


def test_one_that_takes_too_long_is_a_400(
    requests: GrammarRequests, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests.begin(request())
    compiler.compilation.effort = Effort()
    assert requests.take_ended() == []
    monkeypatch.setattr(compiler_module, "MAX_SECONDS", 0.0)
    [(_, refusal)] = requests.take_ended()
    assert isinstance(refusal, Rejected)
    assert (refusal.status, len(requests)) == (400, 0)
    assert "takes too long to compile" in refusal.message


def test_a_defect_of_the_library_is_raised_once(
    requests: GrammarRequests, compiler: Compiler
) -> None:
    requests.begin(request())
    compiler.compilation.grammar.set_exception(MemoryError())
    [(_, failure)] = requests.take_ended()
    assert isinstance(failure, Rejected)
    assert (failure.status, len(requests)) == (500, 0)


def test_too_many_are_told_to_come_again(requests: GrammarRequests, compiler: Compiler) -> None:
    compiler.busy = True
    refusal = requests.begin(request())
    assert refusal is not None
    assert (refusal.status, refusal.retry_after) == (429, 1)


def test_without_a_compiler_it_is_refused() -> None:
    refusal = GrammarRequests(None, lambda: None).begin(request())
    assert refusal is not None
    assert (refusal.status, refusal.param) == (400, "structured_outputs")


def test_those_whose_client_is_gone_are_forgotten(
    requests: GrammarRequests, compiler: Compiler
) -> None:
    for handle, client in ((1, 0), (2, 1), (3, 1)):
        requests.begin(request(handle, client))
    requests.end(1)
    requests.end(99)
    requests.end_client(1)
    assert len(requests) == 0
    compiler.compilation.grammar.set_result(GRAMMAR)
    assert requests.take_ended() == []


def test_a_future_that_was_cancelled_fails_its_request(
    requests: GrammarRequests, compiler: Compiler
) -> None:
    cancelled: Future[Any] = compiler.compilation.grammar
    requests.begin(request())
    cancelled.cancel()
    [(_, failure)] = requests.take_ended()
    assert isinstance(failure, Rejected)
    assert failure.status == 500
