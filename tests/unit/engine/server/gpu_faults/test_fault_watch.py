"""The loop around a probe: it hangs, fails, recovers, and is never asked twice at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvasir_engine.server.gpu_faults.fault_judge import FaultJudge, GpuFault
from kvasir_engine.server.gpu_faults.fault_watch import FaultWatch
from kvasir_engine.server.gpu_faults.gpu_probe import GpuState, ProbeError, Sight, XidEvent

GPUS = ("g",)
QUIET = Sight((), (GpuState("g"),))
FATAL = Sight((XidEvent("g", 79),))


class ScriptedProbe:
    """Answers in turn what it is given: a value, an exception to raise, or what to call."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.threads: set[str] = set()

    def open(self) -> Any:
        return self._answer()

    def look(self, seconds: float) -> Any:
        return self._answer()

    def _answer(self) -> object:
        self.threads.add(threading.current_thread().name)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


class Told:
    """A FaultTeller that notes what it is told."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.hung = threading.Event()

    def watching(self, gpus: tuple[str, ...]) -> None:
        self.lines.append(("watching", *gpus))

    def unwatched(self, reason: str) -> None:
        self.lines.append(("unwatched", reason))

    def trouble(self, kind: str, reason: str) -> None:
        self.lines.append((kind, reason))
        if kind == "timeout":
            self.hung.set()

    def seen(self, sight: Sight) -> None:
        pass

    def fault(self, fault: GpuFault) -> None:
        self.lines.append(fault.kind)


Run = Callable[..., tuple[GpuFault | None, list[Any], ScriptedProbe]]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def run(told: Told) -> Run:
    def start(*answers: object, timeout: float = 10.0) -> Any:
        probe, judge = ScriptedProbe(*answers), FaultJudge(frozenset({79}), settle=0.0)
        fault = FaultWatch(probe, judge, told, timeout=timeout, pause=0.0).run()
        return fault, told.lines, probe

    return start


def test_it_looks_until_a_fault_ends_the_engine(run: Run) -> None:
    own = Sight((XidEvent("g", 13),))
    fault, lines, probe = run(GPUS, QUIET, own, FATAL)
    assert fault is not None
    assert fault.kind == "xid_79"
    assert lines == [("watching", "g"), "xid_13", "xid_79"]
    assert probe.threads == {"gpu-probe"}, "the main thread stays free"


def test_without_gpus_to_look_at_it_ends_quietly(run: Run) -> None:
    fault, lines, _ = run(ProbeError("nvidia-ml-py is not installed"))
    assert fault is None
    assert lines == [("unwatched", "nvidia-ml-py is not installed")]


def test_a_defect_of_the_library_at_the_start_ends_it_quietly(run: Run) -> None:
    fault, lines, _ = run(OSError("libnvidia-ml.so"))
    assert fault is None
    assert lines == [("unwatched", "OSError: libnvidia-ml.so")]


def test_looks_that_fail_are_told_and_so_is_recovery(run: Run) -> None:
    _, lines, _ = run(GPUS, ProbeError("no"), ValueError("odd"), QUIET, FATAL)
    assert lines[1:4] == [("error", "no"), ("error", "ValueError: odd"), ("watching", "g")]
    assert lines[4:] == ["xid_79"]


def test_a_probe_that_hangs_is_told_once_and_believed_when_it_answers(run: Run, told: Told) -> None:
    def hang() -> Sight:
        assert told.hung.wait(60)
        return FATAL

    fault, lines, _ = run(GPUS, hang, timeout=0.01)
    assert fault is not None
    assert lines == [("watching", "g"), ("timeout", "no answer within 0.01 s"), "xid_79"]
