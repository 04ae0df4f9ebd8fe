"""A core's turns while requests wait for their grammars. Its process has tests of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvasir_engine.core import service
from kvasir_engine.core.build import build_core
from kvasir_engine.core.channels import Channels
from kvasir_engine.core.grammar_requests import GrammarRequests
from kvasir_engine.core.service import CoreService
from kvasir_engine.core.status import CoreStatus
from kvasir_engine.grammar.compiler import Compilation
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.messages import (
    Abort,
    Accepted,
    Add,
    Drain,
    Drained,
    FromCore,
    Hello,
    Rejected,
    StepTokens,
    ToCore,
    encoder,
    from_core_decoder,
)
from kvasir_engine.request import EngineRequest, Resume
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.settings import make_settings
from kvasir_engine.step_plan import Int32Array

ME = 7
"""Incarnation of the one client."""


class Free:
    """Grammar and matcher of whatever the simulated model says, but for token 0."""

    num_accepted = 0

    def matcher(self, stop_ids: Sequence[int]) -> Free:
        return Free()

    def accept(self, token: int) -> bool:
        self.num_accepted += token != 0
        return token != 0

    def restart(self) -> None:
        self.num_accepted = 0

    def fill(self, mask: Int32Array) -> None:
        mask[:] = -1


class Compiler:
    """Compiles when the test does."""

    def __init__(self) -> None:
        self.compilation = Compilation()

    def compile(self, constraint: Any, *, done: Callable[[], None]) -> Compilation:
        self.compilation.grammar.add_done_callback(lambda _: done())
        return self.compilation


class Bench:
    """A core of a simulated device and its one client, turned by the test."""

    def __init__(self, channels: Channels, model_dir: Path) -> None:
        channels.metrics.mkdir()
        self.compiler = Compiler()
        core = build_core(make_settings(str(model_dir), device="sim", num_blocks=512), model_dir)
        core.grammars = self.compiler  # type: ignore[assignment]
        self.status = CoreStatus(channels.status, create=True)
        self.context = zmq.Context()
        self.inbox = self.context.socket(zmq.PULL)
        self.inbox.bind(channels.to_client(0))
        self.service = CoreService(core, channels, self.status, num_clients=1)
        self.outbox = self.context.socket(zmq.PUSH)
        self.outbox.connect(channels.to_core)
        self.send(Hello(0, ME))
        self.answer()

    def close(self) -> None:
        self.service.close()
        self.context.destroy(linger=0)
        self.status.close()

    def send(self, message: ToCore) -> None:
        self.outbox.send(encoder.encode(message))

    def add(
        self, handle: int = 0, *, resumed: Sequence[int] = (), may_be_free: bool = False
    ) -> None:
        resume = Resume(list(resumed)) if resumed else None
        request = EngineRequest(
            f"r{handle}",
            handle,
            [1, 2],
            SamplingParams(max_tokens=3),
            constraint="regex:a",
            resume=resume,
            may_be_free=may_be_free,
        )
        self.send(Add.of(request, ME))

    def answer(self) -> FromCore:
        """Turn the core until it says something."""
        while not self.inbox.poll(0):
            self.service._turn()
        return from_core_decoder.decode(self.inbox.recv())

    def waiting(self) -> int:
        """Turn the core until a request waits, and return how many do."""
        while not len(self.service._grammars):
            self.service._turn()
        return len(self.service._grammars)


@pytest.fixture
def bench(tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(service, "IDLE_POLL_MS", 10)
    made = Bench(Channels(tmp_path), tiny_dir)
    yield made
    made.close()


def test_a_request_is_admitted_once_its_grammar_is_there(bench: Bench) -> None:
    bench.add()
    assert bench.waiting() == 1
    bench.compiler.compilation.grammar.set_result(Free())  # type: ignore[arg-type]
    assert bench.answer() == Accepted(0)
    assert isinstance(bench.answer(), StepTokens)


def test_a_grammar_that_does_not_compile_refuses_its_request(bench: Bench) -> None:
    bench.add()
    bench.waiting()
    bench.compiler.compilation.grammar.set_exception(ConstraintError("it is bad"))
    refusal = bench.answer()
    assert isinstance(refusal, Rejected)
    assert (refusal.status, refusal.param) == (400, "structured_outputs")


def test_output_that_has_not_the_form_is_not_resumed(bench: Bench) -> None:
    bench.add(resumed=[5, 0])
    bench.waiting()
    bench.compiler.compilation.grammar.set_result(Free())  # type: ignore[arg-type]
    refusal = bench.answer()
    assert isinstance(refusal, Rejected)
    assert (refusal.status, refusal.param) == (400, "resume.output_token_ids")


def test_a_request_that_asked_for_no_form_is_served_without_one(bench: Bench) -> None:
    bench.add(may_be_free=True)
    bench.waiting()
    bench.compiler.compilation.grammar.set_exception(ConstraintError("it is bad"))
    assert bench.answer() == Accepted(0)
    assert isinstance(bench.answer(), StepTokens)


def test_its_output_is_resumed_whatever_it_is(bench: Bench) -> None:
    bench.add(resumed=[5, 0], may_be_free=True)
    bench.waiting()
    bench.compiler.compilation.grammar.set_result(Free())  # type: ignore[arg-type]
    assert bench.answer() == Accepted(0)


def test_it_needs_no_compiler(bench: Bench) -> None:
    bench.service._grammars = GrammarRequests(None, lambda: None)
    bench.add(may_be_free=True)
    assert bench.answer() == Accepted(0)
    bench.add(3)
    answers = [bench.answer()]
    while not isinstance(answers[-1], Rejected):
        answers.append(bench.answer())
    assert answers[-1].status == 400


def test_a_draining_core_serves_what_came_before(bench: Bench) -> None:
    bench.add()
    bench.waiting()
    bench.send(Drain(0))
    bench.add(1)
    refusal = bench.answer()
    assert isinstance(refusal, Rejected)
    assert (refusal.handle, refusal.status) == (1, 503)
    bench.compiler.compilation.grammar.set_result(Free())  # type: ignore[arg-type]
    said = [bench.answer()]
    while said[-1] != Drained():
        said.append(bench.answer())
    assert said[0] == Accepted(0)
    assert any(isinstance(each, StepTokens) for each in said)


def test_a_client_that_leaves_is_waited_for_no_longer(bench: Bench) -> None:
    bench.add()
    bench.waiting()
    bench.send(Abort([0]))
    bench.send(Drain(0))
    assert bench.answer() == Drained()
    bench.compiler.compilation.grammar.set_result(Free())  # type: ignore[arg-type]
    bench.service._turn()
    assert not bench.inbox.poll(0)


def test_a_prompt_that_cannot_be_read_is_refused_and_ends_nothing(bench: Bench) -> None:
    broken = EngineRequest("r", 4, [], SamplingParams(max_tokens=3))
    bench.send(Add(broken, ME, bytes(7)))
    refusal = bench.answer()
    assert isinstance(refusal, Rejected)
    assert (refusal.handle, refusal.status) == (4, 500)
    bench.send(Add.of(EngineRequest("s", 5, [1, 2], SamplingParams(max_tokens=3)), ME))
    assert bench.answer() == Accepted(5)
