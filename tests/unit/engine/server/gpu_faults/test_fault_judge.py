"""State machine of what is seen: flapping, recovery, repetition, and one end at most."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvasir_engine.server.gpu_faults.fault_judge import (
    CONFIRMATIONS,
    SAME_SECONDS,
    FaultJudge,
    GpuFault,
)
from kvasir_engine.server.gpu_faults.gpu_probe import GpuState, Sight, XidEvent
from kvasir_engine.server.gpu_faults.xid_table import DRAIN_XIDS

SOUND = GpuState("g", row_remap_failed=False, uncorrectable_errors=0)
LOST = GpuState("g", lost=True)
XIDS = frozenset(DRAIN_XIDS)


def make_judge(*, drains: bool = True, settle: float = 0.0) -> FaultJudge:
    return FaultJudge(XIDS, drains=drains, settle=settle)


def see(judge: FaultJudge, *states: GpuState, now: float = 0.0) -> list[GpuFault]:
    """Look at one GPU in turn; return the faults told."""
    return [
        fault
        for at, state in enumerate(states)
        for fault in judge.judge(Sight((), (state,)), now + at)
    ]


def xid(judge: FaultJudge, number: int, now: float = 0.0) -> GpuFault:
    [fault] = judge.judge(Sight((XidEvent("g", number),)), now)
    return fault


def test_a_listed_xid_ends_the_engine_at_once() -> None:
    fault = xid(make_judge(), 79)
    assert (fault.kind, fault.drains) == ("xid_79", True)
    assert fault.sentence == "GPU g: Xid 79, it has fallen off the bus"


def test_xids_of_applications_and_unknown_ones_are_only_told() -> None:
    judge = make_judge()
    for number in (13, 31, 43, 45, 63, 92, 777):
        assert not xid(judge, number).drains


def test_nothing_ends_the_engine_twice() -> None:
    judge = make_judge()
    both = judge.judge(Sight((XidEvent("g", 79), XidEvent("h", 48)), (SOUND,)), 0.0)
    assert [fault.drains for fault in both] == [True, False]
    assert not xid(judge, 95).drains


def test_an_event_within_the_first_minutes_is_only_told() -> None:
    judge = make_judge(settle=300.0)
    see(judge, SOUND)
    assert not xid(judge, 79, now=299.0).drains
    assert xid(judge, 79, now=300.0).drains


def test_a_state_that_lasts_ends_the_engine_when_the_first_minutes_are_over() -> None:
    judge = make_judge(settle=300.0)
    [told] = see(judge, SOUND, LOST, LOST, LOST)
    assert (told.kind, told.drains) == ("gpu_lost", False)
    [fault] = see(judge, LOST, now=300.0)
    assert fault.drains


def test_a_state_counts_when_two_looks_in_turn_have_seen_it() -> None:
    judge = make_judge()
    assert see(judge, SOUND, LOST, SOUND, LOST, SOUND) == []
    [fault] = see(judge, LOST, LOST)
    assert (fault.kind, fault.drains) == ("gpu_lost", True)


def test_what_was_so_at_the_start_ends_nothing() -> None:
    judge = make_judge()
    worn = replace(SOUND, row_remap_failed=True, uncorrectable_errors=7)
    [told] = see(judge, worn, worn, worn)
    assert (told.kind, told.drains) == ("row_remap_failure", False)
    assert told.clause.endswith("since before the engine looked")
    [fault] = see(judge, *2 * [replace(worn, uncorrectable_errors=8)])
    assert (fault.kind, fault.drains) == ("ecc_uncorrectable", True)


def test_a_gpu_that_was_lost_at_the_start_may_be_lost_again() -> None:
    judge = make_judge()
    assert [fault.drains for fault in see(judge, LOST, LOST, SOUND, LOST, LOST)] == [False, True]


def test_a_gpu_that_is_lost_keeps_what_it_had_at_the_start() -> None:
    judge = make_judge(drains=False)
    worn = replace(SOUND, row_remap_failed=True)
    kinds = [fault.kind for fault in see(judge, worn, LOST, LOST, worn, worn, worn)]
    assert kinds == ["row_remap_failure", "gpu_lost"]


def test_a_count_that_begins_anew_is_no_fault() -> None:
    judge = make_judge()
    counts = [replace(SOUND, uncorrectable_errors=count) for count in (5, 0, 0)]
    assert see(judge, *counts) == []
    [fault] = see(judge, *2 * [replace(SOUND, uncorrectable_errors=1)])
    assert fault.kind == "ecc_uncorrectable"


def test_a_gpu_that_does_not_tell_has_no_fault() -> None:
    assert see(make_judge(), *3 * [GpuState("g")]) == []


def test_one_that_needs_a_reset_ends_the_engine() -> None:
    [fault] = see(make_judge(), SOUND, *2 * [replace(SOUND, needs_reset=True)])
    assert (fault.kind, fault.drains) == ("reset_required", True)


def test_slow_clocks_are_no_fault() -> None:
    slow = replace(SOUND, slowdowns=frozenset({"power_brake"}))
    assert see(make_judge(), SOUND, slow, slow, slow) == []


def test_switched_off_it_only_tells() -> None:
    judge = make_judge(drains=False)
    assert not xid(judge, 79).drains
    assert [fault.drains for fault in see(judge, SOUND, LOST, LOST)] == [False]


def test_the_log_has_a_fault_of_a_kind_once_a_minute() -> None:
    judge = make_judge(drains=False)
    repeated = [xid(judge, 13, now).is_repeated for now in (0.0, 1.0, SAME_SECONDS - 1)]
    assert repeated == [False, True, True]
    assert not xid(judge, 31, 2.0).is_repeated
    assert not xid(judge, 13, SAME_SECONDS).is_repeated


STATES = st.builds(
    GpuState,
    st.sampled_from(["g", "h"]),
    st.booleans(),
    st.booleans(),
    st.none() | st.booleans(),
    st.none() | st.integers(0, 3),
)
SIGHTS = st.builds(
    Sight,
    st.lists(
        st.builds(XidEvent, st.just("g"), st.sampled_from([13, 63, 79, 95, 777])), max_size=2
    ).map(tuple),
    st.lists(STATES, max_size=2, unique_by=lambda state: state.gpu).map(tuple),
)


@given(st.lists(SIGHTS, max_size=12), st.integers(0, 8))
def test_whatever_is_seen_ends_the_engine_once_and_for_a_reason(
    sights: list[Sight], settle: int
) -> None:
    judge = FaultJudge(XIDS, settle=settle)
    ends = [
        (now, fault)
        for now, sight in enumerate(sights)
        for fault in judge.judge(sight, now)
        if fault.drains
    ]
    assert len(ends) <= 1
    for now, fault in ends:
        assert now >= settle
        if fault.kind.startswith("xid_"):
            assert int(fault.kind.removeprefix("xid_")) in XIDS
        else:
            looks = [
                state
                for each in sights[: now + 1]
                for state in each.states
                if state.gpu == fault.gpu
            ]
            assert len(looks) > CONFIRMATIONS, "the first look alone, or one more, ends nothing"
