"""Failures that come back are told; those that pass at once are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvasir.kube import ApiError
from kvasir.resource.deployment_status import Reason
from kvasir_operator.controller.failures import (
    Failures,
    failed_access,
    failed_inside,
    failed_write,
    is_about_the_server,
    still_there,
)
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.plan.failure import Failure

KEY = Key("ns", "m")
OTHER = Key("ns", "n")


def passing(what: str = "Service m") -> Failure:
    return Failure(what, "it failed.", Reason.APPLY_FAILED, True)


def test_told_the_third_time_and_until_it_is_over() -> None:
    memory = Failures()
    assert not memory.note(KEY, [passing()], 0.0)
    assert not memory.note(KEY, [passing()], 0.5)
    assert not memory.note(OTHER, [passing()], 0.5)
    assert memory.note(KEY, [passing()], 1.5) == [passing()]
    # The queue comes back once a minute in the end
    assert memory.note(KEY, [passing()], 62.0) == [passing()]
    assert not memory.note(KEY, [], 63.0)
    assert not memory.note(KEY, [passing()], 200.0)


def test_rare_failures_are_not_told() -> None:
    memory = Failures()
    for second in range(0, 600, 20):
        assert not memory.note(KEY, [passing()], float(second))
        assert not memory.note(KEY, [], second + 1.0)


def test_what_fails_every_other_time_is_told() -> None:
    memory = Failures()
    looks = ([passing()], [], [passing()], [], [passing()], [])
    told = [bool(memory.note(KEY, found, float(second))) for second, found in enumerate(looks)]
    assert told == [False, False, False, False, True, False]


def test_objects_are_counted_each_for_itself() -> None:
    memory = Failures()
    memory.note(KEY, [passing("Job a")], 0.0)
    memory.note(KEY, [passing("Job b")], 1.0)
    assert not memory.note(KEY, [passing("Job a"), passing("Job b")], 2.0)
    assert memory.note(KEY, [passing("Job a"), passing("Job c")], 3.0) == [passing("Job a")]


def test_a_refusal_for_good_is_told_at_once() -> None:
    refused = Failure("Service m", "no.", Reason.APPLY_FAILED, False)
    assert Failures().note(KEY, [refused, passing("Job a")], 0.0) == [refused]


@pytest.mark.parametrize(
    ("error", "reason", "is_passing", "words"),
    [
        (
            ApiError(500, "InternalError", "boom."),
            "ApplyFailed",
            True,
            "could not be written: boom.",
        ),
        (ApiError(422, "Invalid", "bad"), "ApplyFailed", False, "was refused: bad."),
    ],
)
def test_writes(error: Any, reason: str, is_passing: bool, words: str) -> None:
    failure = failed_write({"kind": "Job", "metadata": {"name": "j"}}, error)
    assert (failure.reason, failure.passing) == (reason, is_passing)
    assert failure.message == f"Job j {words}"


@pytest.mark.parametrize(
    ("finalizers", "words"),
    [
        (["foregroundDeletion"], "waits for what belongs to it."),
        (
            ["foregroundDeletion", "a.com/b", "c.com/d"],
            "is held by its finalizers a.com/b, c.com/d; whoever set them must remove them.",
        ),
    ],
)
def test_deletions(finalizers: list[str], words: str) -> None:
    metadata = {"name": "j", "deletionTimestamp": "T", "finalizers": finalizers}
    job = {"kind": "Job", "metadata": metadata}
    failure = failed_write(job, still_there(job))
    assert failure.reason is Reason.DELETION_STUCK
    assert failure.message == f"Job j is being deleted since T and {words}"


def test_other_failures_have_their_words() -> None:
    found = failed_access(ApiError(403, "Forbidden", "secrets is forbidden."))
    assert found.message == "The API server answered: secrets is forbidden."
    assert "(KeyError: 'x')" in failed_inside(KeyError("x")).message
    assert is_about_the_server(ApiError(0, "Unreachable", "not reached"))
    assert not is_about_the_server(ApiError(500, "InternalError", "a webhook failed"))


class AnyFailures(RuleBasedStateMachine):
    """Whatever fails when: a passing failure is told exactly if it came TIMES times in the window,
    or was told at the look before."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Failures()
        self.now = 0.0
        self.times: dict[str, list[float]] = {}
        self.known: set[str] = set()

    @rule(after=st.floats(0, 40), what=st.sets(st.sampled_from("abc")))
    def look(self, after: float, what: set[str]) -> None:
        self.now += after
        told = {each.what for each in self.memory.note(KEY, map(passing, sorted(what)), self.now)}
        for each in what:
            self.times.setdefault(each, []).append(self.now)
        expected = set()
        for each in what:
            recent = [at for at in self.times[each] if self.now - at <= 30.0]
            if each in self.known or len(recent) >= 3:
                expected.add(each)
        assert told == expected
        self.known = told

    @rule()
    def delete(self) -> None:
        self.memory.forget(KEY)
        self.times.clear()
        self.known.clear()

    @invariant()
    def nothing_is_kept_for_ever(self) -> None:
        kept = self.memory._seen.get(KEY, {})
        assert sum(map(len, kept.values())) <= 3 * 3


TestAnyFailures = AnyFailures.TestCase
