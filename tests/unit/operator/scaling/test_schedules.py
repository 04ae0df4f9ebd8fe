"""Windows of schedules, beside a walk over every minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir.resource.scaling.schedule_spec import ScalingSchedule
from kvasir_operator.scaling.schedules import ScheduleClock, bounds_at, window_at

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Asia/Kolkata")
CHANGES = [
    datetime(2026, 3, 29, tzinfo=UTC),  # Berlin: 2:00 to 3:00
    datetime(2026, 10, 25, tzinfo=UTC),  # Berlin: 3:00 back to 2:00
    datetime(2026, 3, 8, tzinfo=UTC),
    datetime(2026, 11, 1, tzinfo=UTC),
    datetime(2026, 9, 6, tzinfo=UTC),  # Santiago: midnight does not exist
    datetime(2026, 4, 5, tzinfo=UTC),
    datetime(2026, 7, 1, tzinfo=UTC),
]


def schedule(**content: Any) -> ScalingSchedule:
    content = {"minReplicas": 2, **content}
    if "end" not in content and "durationSeconds" not in content:
        content["durationSeconds"] = 3600
    return ScalingSchedule.model_validate(content)


def autoscaling(*schedules: dict[str, Any], **content: Any) -> Autoscaling:
    return Autoscaling.model_validate({"maxReplicas": 8, "schedules": [*schedules], **content})


def numbers(field: str, low: int, high: int) -> set[int]:
    """The values of one field, for the forms that the strategy below makes."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = low if span == "*" else int(first)
        end = high if span == "*" or (step and not last) else int(last or first)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def brute(expression: str, zone: ZoneInfo, begin: datetime, minutes: int) -> Iterator[bool]:
    """Whether the expression comes, minute by minute."""
    minute, hour, _, _, day = expression.split()
    at_minutes, at_hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
    days = {each % 7 for each in numbers(day, 0, 7)}
    by_real_time = minute.startswith("*") or hour.startswith("*")

    def matches(at: datetime) -> bool:
        weekday = (at.weekday() + 1) % 7
        return at.minute in at_minutes and at.hour in at_hours and weekday in days

    before = (begin - MINUTE).astimezone(zone).replace(tzinfo=None)
    for each in range(minutes):
        now = (begin + each * MINUTE).astimezone(zone)
        if by_real_time:
            yield matches(now)
            continue
        local = now.replace(tzinfo=None)
        # The minutes that clocks leave out come at the end of the gap
        skipped = (local - before) // MINUTE - 1
        left_out = any(matches(local - gap * MINUTE) for gap in range(1, skipped + 1))
        before = local
        yield left_out or (matches(now) and not now.fold)


MINUTES = st.one_of(st.just("*"), st.sampled_from(["0", "30", "59", "*/20", "15-45/15", "5,50"]))
HOURS = st.one_of(
    st.just("*"), st.integers(0, 23).map(str), st.sampled_from(["*/6", "1-3", "0,2", "8/5"])
)
DAYS = st.sampled_from(["*", "1-5", "0", "7", "6,0", "0/3"])
CRONS = st.builds(lambda minute, hour, day: f"{minute} {hour} * * {day}", MINUTES, HOURS, DAYS)


@pytest.mark.slow
@given(
    start=CRONS,
    end=st.one_of(CRONS, st.integers(1, 40).map(lambda it: it * 1800)),
    zone=st.sampled_from(ZONES),
    day=st.sampled_from(CHANGES),
    hours=st.integers(-12, 30),
)
@example("45 2 * * *", 3600, "Europe/Berlin", CHANGES[1], 1)
@example("30 2 * * *", "0 4 * * *", "Europe/Berlin", CHANGES[0], 0)
@example("0 0 * * 0", "0 1 * * *", "America/Santiago", CHANGES[4], 0)
@example("* * * * *", 3600, "UTC", CHANGES[6], 0)
def test_windows_are_those_of_a_walk_over_every_minute(
    start: str, end: str | int, zone: str, day: datetime, hours: int
) -> None:
    assume(start != end)
    more = {"end": end} if isinstance(end, str) else {"durationSeconds": end}
    one = schedule(start=start, timezone=zone, **more)
    first = day + timedelta(hours=hours)
    begin, minutes = first - 8 * DAY, 10 * 24 * 60
    starts = [*brute(start, ZoneInfo(zone), begin, minutes)]
    ends = [*brute(end, ZoneInfo(zone), begin, minutes)] if isinstance(end, str) else []
    opened: list[bool] = []
    since, active = None, False
    for each in range(minutes):
        if isinstance(end, int):
            since = each if starts[each] else since
            opened.append(since is not None and each - since < end / 60)
        else:
            active = starts[each] or (active and not ends[each])
            opened.append(active)
    at = 8 * 24 * 60
    found = window_at(one, first)
    assert found.active == opened[at]
    later = (each for each in range(at, minutes) if opened[each] != found.active)
    change = next(later, None)
    if found.change is None and found.certain is not None:
        assert change is None or begin + change * MINUTE >= found.certain
    elif change is not None:
        assert found.change == found.certain == begin + change * MINUTE
    else:
        assert found.change is None or found.change >= begin + minutes * MINUTE


WORK = {"start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "timezone": "Europe/Berlin"}
NOON = datetime(2026, 7, 1, 10, tzinfo=UTC)


def test_a_window_is_known_in_its_middle() -> None:
    evening = datetime(2026, 7, 1, 16, tzinfo=UTC)
    found = bounds_at(autoscaling({**WORK, "minReplicas": 3, "name": "work"}), NOON)
    assert found == (3, 8, ("work",), evening, evening)


def test_the_largest_bounds_of_those_that_are_active_count() -> None:
    wanted = autoscaling(
        {**WORK, "minReplicas": 3, "maxReplicas": 5},
        {"start": "0 * * * *", "durationSeconds": 1800, "minReplicas": 4, "name": "hourly"},
        {"start": "0 0 * * *", "durationSeconds": 60, "minReplicas": 7, "maxReplicas": 12},
    )
    assert bounds_at(wanted, NOON)[:3] == (4, 8, ("0 8 * * 1-5", "hourly"))
    later = NOON + 40 * MINUTE
    assert bounds_at(wanted, later)[:2] == (3, 5)


def test_a_schedule_never_takes_replicas_that_the_spec_asks_for() -> None:
    wanted = autoscaling({**WORK, "minReplicas": 0}, minReplicas=2)
    assert bounds_at(wanted, NOON)[:2] == (2, 8)


def test_windows_that_never_close_have_no_change() -> None:
    always = schedule(start="*/5 * * * *", durationSeconds=600)
    assert window_at(always, NOON)[:2] == (True, None)


def test_a_day_that_comes_every_four_years_is_found() -> None:
    one = schedule(start="0 0 29 2 *")
    assert window_at(one, NOON)[:2] == (False, datetime(2028, 2, 29, tzinfo=UTC))
    assert window_at(one, datetime(2028, 2, 29, 0, 30, tzinfo=UTC)).active


def test_bounds_are_computed_anew_when_they_change_or_the_clock_goes_back() -> None:
    clock, wanted = ScheduleClock(), autoscaling({**WORK, "minReplicas": 3})
    evening = datetime(2026, 7, 1, 16, tzinfo=UTC)
    found = [
        clock.bounds(wanted, at).low
        for at in (NOON, evening - MINUTE, evening, evening - MINUTE, NOON + DAY, NOON)
    ]
    assert found == [3, 3, 1, 3, 3, 3]
    assert clock.bounds(autoscaling({**WORK, "minReplicas": 4}), NOON).low == 4


@pytest.mark.parametrize("second", [0, 1, 59])
def test_a_window_opens_and_closes_to_the_second(second: int) -> None:
    one = schedule(start="0 12 * * *", durationSeconds=90)
    at = datetime(2026, 7, 1, 12, 0, second, tzinfo=UTC)
    assert window_at(one, at)[:2] == (True, datetime(2026, 7, 1, 12, 1, 30, tzinfo=UTC))
    assert not window_at(one, at - MINUTE).active
    assert not window_at(one, datetime(2026, 7, 1, 12, 1, 30, tzinfo=UTC)).active
