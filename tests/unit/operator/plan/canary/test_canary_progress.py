"""The state machine of a canary: steps, pauses, words of people, and every way back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.resource.rollout.rollout_spec import Canary
from kvasir.resource.rollout.rollout_status import RolloutCommand, RolloutPhase, RolloutStatus
from kvasir.wire.canary_samples import CanarySamples, RevisionSamples
from kvasir_operator.plan.canary.canary_progress import CanaryFacts, advance, finish, replicas_of

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TWO = Canary.model_validate({"steps": [{"weight": 10}, {"weight": 50}]})


class Machine:
    """A canary that is looked at again and again."""

    def __init__(self, wanted: Canary = TWO, **facts: Any) -> None:
        self.wanted = wanted
        self.facts = CanaryFacts(now=NOW, revision="new", stable="old", replicas=4, **facts)
        self.state: RolloutStatus | None = None

    def look(self, seconds: float = 0.0, **facts: Any) -> RolloutStatus:
        now = self.facts.now + timedelta(seconds=seconds)
        self.facts = replace(self.facts, now=now, **facts)
        self.state = advance(self.wanted, self.state, self.facts)
        # As the API server has it, and a new operator reads it
        text = self.state.model_dump_json(by_alias=True, exclude_none=True)
        assert RolloutStatus.model_validate_json(text) == self.state
        return self.state

    def good(self, requests: int = 600) -> CanarySamples:
        assert self.state is not None
        assert self.state.split is not None
        one = RevisionSamples(answers=requests)
        return CanarySamples(self.state.split.id, one, one)

    def bad(self) -> CanarySamples:
        found = self.good()
        found.canary = RevisionSamples(answers=500, errors=100)
        return found

    def analysing(self) -> RolloutStatus:
        """Come to the first step's analysis."""
        self.look()
        return self.look(ready=1)


def test_requests_come_only_when_the_pods_serve() -> None:
    machine = Machine()
    first = machine.look()
    assert (first.phase, first.split, first.replicas) == (RolloutPhase.STARTING, None, 1)
    second = machine.look(5, ready=1)
    assert second.phase == RolloutPhase.ANALYSING
    assert second.split is not None
    assert (second.split.weight, second.split.revision) == (10, "new")
    assert second.split.id == second.id == "new.1.1"


def test_a_good_canary_goes_all_the_way() -> None:
    machine = Machine()
    machine.analysing()
    assert machine.look(59, samples=machine.good()).phase == RolloutPhase.ANALYSING
    third = machine.look(1, samples=machine.good())
    assert (third.phase, third.step, third.replicas) == (RolloutPhase.STARTING, 2, 2)
    assert third.split is not None
    assert third.split.weight == 10, "until its pods serve"
    fourth = machine.look(5, ready=2)
    assert fourth.split is not None
    assert fourth.split.weight == 50
    assert fourth.samples is None, "those of the last step are not this one's"
    last = machine.look(60, samples=machine.good())
    assert last.phase == RolloutPhase.PROMOTING
    assert last.split is not None
    assert last.split.weight is None
    assert advance(machine.wanted, last, machine.facts) == last
    promoted = replace(machine.facts, stable="new")
    assert finish(last, promoted) == last
    done = finish(last, replace(promoted, rolled_out=True))
    assert done is not None
    assert (done.phase, done.split) == (RolloutPhase.PROMOTED, None)
    assert finish(done, promoted) == done


def test_samples_of_another_step_do_not_count() -> None:
    machine = Machine()
    machine.analysing()
    stale = replace(machine.bad(), split="new.1.0")
    assert machine.look(60, samples=stale).phase == RolloutPhase.ANALYSING


def test_a_bad_canary_is_rolled_back_and_stays_so() -> None:
    machine = Machine()
    machine.analysing()
    back = machine.look(5, samples=machine.bad())
    assert (back.phase, back.reason) == (RolloutPhase.ROLLED_BACK, "ErrorsIncreased")
    assert (back.split, back.weight, back.replicas) == (None, 0, 0)
    assert machine.look(86400, problem="") == back
    again = machine.look(5, command=(RolloutCommand.RETRY, back.id))
    assert (again.phase, again.attempt, again.step) == (RolloutPhase.STARTING, 2, 1)
    assert machine.look(5, ready=1).id == "new.2.1"


def test_it_is_bad_also_while_the_next_steps_pods_start() -> None:
    machine = Machine()
    machine.analysing()
    machine.look(60, samples=machine.good())
    back = machine.look(5, samples=machine.bad())
    assert back.phase == RolloutPhase.ROLLED_BACK


def test_a_start_that_fails_is_rolled_back() -> None:
    machine = Machine()
    machine.look()
    back = machine.look(60, problem="Image x cannot be pulled.")
    assert (back.phase, back.reason) == (RolloutPhase.ROLLED_BACK, "StartFailed")
    assert back.message == "Image x cannot be pulled."


def test_a_step_without_samples_ends() -> None:
    machine = Machine()
    machine.analysing()
    assert machine.look(3599).phase == RolloutPhase.ANALYSING
    back = machine.look(1)
    assert (back.phase, back.reason) == (RolloutPhase.ROLLED_BACK, "StepTimeout")
    assert "minSamples is 500" in back.message
    assert "maxSeconds" in back.message


@pytest.mark.parametrize("pause", [{"seconds": 600}, {}])
def test_a_pause_holds_a_step_that_has_passed(pause: dict[str, int]) -> None:
    wanted = Canary.model_validate({"steps": [{"weight": 10, "pause": pause}, {"weight": 20}]})
    machine = Machine(wanted)
    machine.analysing()
    paused = machine.look(300, samples=machine.good())
    assert paused.phase == RolloutPhase.PAUSED
    later = machine.look(299)
    assert later.phase == RolloutPhase.PAUSED
    after = machine.look(1)
    assert after.phase == (RolloutPhase.STARTING if pause else RolloutPhase.PAUSED)


def test_a_pause_without_end_waits_for_days_and_is_promoted() -> None:
    wanted = Canary.model_validate({"steps": [{"weight": 10, "pause": {}}]})
    machine = Machine(wanted)
    begun = machine.analysing()
    assert machine.look(5 * 86400).phase == RolloutPhase.PAUSED
    assert machine.look(5, command=(RolloutCommand.PROMOTE, "new.1.9")).phase == RolloutPhase.PAUSED
    assert machine.look(5, command=(RolloutCommand.PROMOTE, begun.id)).phase == (
        RolloutPhase.PROMOTING
    )


def test_a_pause_does_not_hide_a_bad_canary() -> None:
    machine = Machine(paused=True)
    machine.analysing()
    assert machine.look(86400, samples=machine.good()).phase == RolloutPhase.PAUSED
    assert machine.look(5, samples=machine.bad()).phase == RolloutPhase.ROLLED_BACK


def test_a_pause_does_not_count_as_time_of_the_step() -> None:
    machine = Machine(paused=True)
    machine.analysing()
    machine.look(86400)
    assert machine.look(30, paused=False).phase == RolloutPhase.ANALYSING
    assert machine.look(3590).phase == RolloutPhase.ROLLED_BACK


def test_promote_is_about_one_step_and_does_not_fire_twice() -> None:
    machine = Machine()
    first = machine.analysing()
    second = machine.look(1, command=(RolloutCommand.PROMOTE, first.id))
    assert second.step == 2
    assert machine.look(1, ready=2).phase == RolloutPhase.ANALYSING


def test_promote_all_and_abort() -> None:
    machine = Machine()
    first = machine.analysing()
    assert machine.look(1, command=(RolloutCommand.PROMOTE_ALL, first.id)).phase == (
        RolloutPhase.PROMOTING
    )
    machine = Machine()
    first = machine.look()
    back = machine.look(1, command=(RolloutCommand.ABORT, first.id))
    assert (back.phase, back.reason) == (RolloutPhase.ROLLED_BACK, "Aborted")


def test_another_revision_begins_anew() -> None:
    machine = Machine()
    machine.analysing()
    machine.look(5, samples=machine.bad())
    fresh = machine.look(5, revision="newer", ready=0)
    assert (fresh.phase, fresh.attempt, fresh.id) == (RolloutPhase.STARTING, 1, "newer.1.1")


def test_steps_that_are_edited_meanwhile_hold_at_once() -> None:
    machine = Machine()
    machine.analysing()
    machine.wanted = Canary.model_validate({"steps": [{"weight": 25}]})
    state = machine.look(5)
    assert state.split is not None
    assert (state.steps, state.weight, state.split.weight) == (1, 25, 25)


@pytest.mark.parametrize(
    ("weight", "replicas", "pods"),
    [(10, 4, 1), (50, 4, 2), (51, 4, 3), (1, 1, 1), (99, 64, 64), (0, 8, 1), (10, 0, 0)],
)
def test_pods_by_weight(weight: int, replicas: int, pods: int) -> None:
    assert replicas_of(weight, replicas) == pods


_looks = st.lists(
    st.fixed_dictionaries(
        {
            "seconds": st.floats(0, 5000),
            "ready": st.integers(0, 4),
            "paused": st.booleans(),
            "problem": st.sampled_from(["", "", "", "It crashed."]),
            "replicas": st.integers(0, 4),
            "verb": st.sampled_from([None, None, None, *RolloutCommand]),
            "is_bad": st.sampled_from([False, False, False, True]),
            "revision": st.sampled_from(["new", "new", "new", "newer"]),
        }
    ),
    max_size=25,
)


@given(_looks)
def test_whatever_happens_no_request_goes_where_it_should_not(looks: list[dict[str, Any]]) -> None:
    machine = Machine()
    machine.look()
    for one in looks:
        assert machine.state is not None
        before = machine.state
        facts = {name: one[name] for name in ("ready", "paused", "problem", "replicas", "revision")}
        samples = None
        if before.split is not None:
            samples = machine.bad() if one["is_bad"] else machine.good()
        command = (one["verb"], before.id) if one["verb"] is not None else None
        after = machine.look(one["seconds"], samples=samples, command=command, **facts)
        if after.split is None:
            assert after.weight == 0
        else:
            assert after.split.revision == after.canary_revision == one["revision"]
        if after.phase == RolloutPhase.ROLLED_BACK:
            assert after.split is None
            assert after.replicas == 0
        same = after.canary_revision == before.canary_revision
        if same and before.phase == RolloutPhase.ROLLED_BACK and one["verb"] != "retry":
            assert after.phase == RolloutPhase.ROLLED_BACK
        if same and after.attempt == before.attempt:
            assert before.step <= after.step <= before.step + 1
