"""SIGINT waits for the end of a block, and of a step of `LLM`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvasir_engine import LLM, SamplingParams
from kvasir_engine.interrupts import hold_interrupts

pytestmark = pytest.mark.slow

TINY = "builtin://kvasir-tiny"
PROMPTS = ["One", "Two", "Three", "Four"]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(n=3, seed=1, max_tokens=1500, ignore_eos=True)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_is_raised_after_the_block() -> None:
    reached = []

    def block() -> None:
        with hold_interrupts():
            interrupt()
            interrupt()
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_in_place_gets_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[tuple[int, Any]] = []
    before = signal.signal(signal.SIGINT, lambda *what: got.append(what))
    try:
        with hold_interrupts():
            interrupt()
            assert got == []
        assert [number for number, _ in got] == [signal.SIGINT]
        interrupt()
        assert len(got) == 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_inside_the_block_gives_the_handler_back() -> None:
    with pytest.raises(ValueError, match="inside"), hold_interrupts():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_leave_the_handler_alone() -> None:
    seen: list[Any] = []

    def run() -> None:
        with hold_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    made = LLM(
        TINY, max_num_seqs=16, kv_cache_memory_bytes=16 << 20, tensor_parallel_size=request.param
    )
    yield made
    made.close()


def in_the_nth(call: int, method: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    def run(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            interrupt()
        return method(*args)

    return run


def tokens(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("call", [1, 9])
@pytest.mark.parametrize("method", ["forward", "sample"])
def test_an_interrupted_llm_goes_on(
    llm: LLM, method: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when a step is planned but not launched, or half launched."""
    expected = tokens(llm)
    runner: Any = type(llm._core.built_runner.runner)
    with monkeypatch.context() as patch:
        patch.setattr(runner, method, in_the_nth(call, getattr(runner, method)))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, ENDLESS, use_tqdm=False)
    llm._core.loop.check_idle()
    llm._core.scheduler.kv.check_integrity()
    assert tokens(llm) == expected


@pytest.mark.parametrize("seconds", [0.01, 0.2])
def test_an_interrupt_at_any_time_leaves_nothing_behind(llm: LLM, seconds: float) -> None:
    expected = tokens(llm)
    timer = threading.Timer(seconds, interrupt)

    def interrupted() -> None:
        timer.start()
        llm.generate(PROMPTS, ENDLESS, use_tqdm=False)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    timer.join()
    llm._core.loop.check_idle()
    assert tokens(llm) == expected
