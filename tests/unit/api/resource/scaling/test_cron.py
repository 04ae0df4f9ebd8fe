from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from kvasir.resource.scaling.cron import CRON_PATTERN, around, check_cron, zone_of

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    "expression",
    ["0 8 * * *", "*/5 0-23/2 1,15 jan-MAR 7", "05 08  31 12 SUN", "5/10 0 * * MON-FRI,SAT"],
)
def test_what_the_pattern_takes_can_be_computed(expression: str) -> None:
    assert re.fullmatch(CRON_PATTERN, expression)
    assert check_cron(expression) is None


@pytest.mark.parametrize(
    "expression",
    [
        *("", "0 8 * *", "0 0 8 * * *", "60 8 * * *", "0 24 * * *", "0 8 0 * *", "0 8 32 * *"),
        *(
            "0 8 * 13 *",
            "0 8 * * 8",
            "*/0 8 * * *",
            "0 8 * * MOON",
            "@daily",
            "0 8 * * 1,",
            "- 8 * * *",
        ),
        *("0 8 L * *", "0 8 * * 5#1", "0 8 * * *\n", "0 8 * * \u0661"),
    ],
)
def test_the_pattern_refuses(expression: str) -> None:
    assert not re.fullmatch(CRON_PATTERN, expression)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("0 8 30 2 *", "Bad day-of-month"),
        ("0 20-8 * * *", "Bad hour"),
        ("0 8 * * FRI-MON", "Bad day-of-week"),
    ],
)
def test_what_no_pattern_sees_is_told(expression: str, told: str) -> None:
    assert check_cron(expression) == told


def test_an_hour_that_is_left_out_comes_at_the_end_of_the_gap() -> None:
    found = around("30 2 * * *", BERLIN, datetime(2026, 3, 29, 0, 59, tzinfo=UTC))
    assert next(found.later) == datetime(2026, 3, 29, 1, tzinfo=UTC)  # 3:00 in summer


def test_an_hour_that_is_repeated_comes_once() -> None:
    second_pass = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)  # 2:15 in winter
    found = around("30 2 * * *", BERLIN, second_pass)
    assert found.last == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert next(found.later) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_a_moment_is_its_own_last_time() -> None:
    at = datetime(2026, 7, 1, 12, tzinfo=UTC)
    found = around("0 12 * * *", ZoneInfo("UTC"), at)
    assert found.last == at
    assert [each.day for each in islice(found.later, 2)] == [2, 3]


@pytest.mark.parametrize("name", ["Mars/Base", "../etc/passwd", "/etc/localtime", "x" * 300, "\0"])
def test_no_zone_is_read_from_elsewhere(name: str) -> None:
    with pytest.raises(ValueError, match="is no time zone"):
        zone_of(name)
