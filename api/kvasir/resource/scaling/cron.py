"""Cron expressions of five fields in a time zone.

Times are those of Debian's cron (https://manpages.debian.org/cron.8), as `cronsim` computes them:
an hour that is left out when clocks go forward happens at the end of the gap, one that is repeated
when they go back happens once, the first time; expressions whose minute or hour begins with * go by
real time instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MAX_CRON = 100
"""Characters of an expression."""
_ANOMALY = timedelta(hours=3)
"""More than clocks are ever put back: from so long before a moment cronsim's times are in order."""


def _field(value: str) -> str:
    item = rf"(\*|({value})(-({value}))?)(/0*[1-9][0-9]?)?"
    return f"{item}(,{item})*"


_MONTHS = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
_DAYS = "SUN|MON|TUE|WED|THU|FRI|SAT"
_FIELDS = (
    "[0-5]?[0-9]",
    "[01]?[0-9]|2[0-3]",
    "0?[1-9]|[12][0-9]|3[01]",
    f"0?[1-9]|1[0-2]|{_MONTHS}",
    f"[0-7]|{_DAYS}",
)
CRON_PATTERN = "(?i)^" + " +".join(map(_field, _FIELDS)) + "$"
"""Pattern that API servers check; ranges that run backwards and days that no month has are left to
`check_cron`."""


class Around(NamedTuple):
    """The times of an expression next to a moment."""

    last: datetime | None
    """The last one, which may be the moment itself; None = none in 50 years."""
    later: Iterator[datetime]
    """Those after the moment, in their order."""


def check_cron(expression: str) -> str | None:
    """Return the part of the expression that makes no sense, such as `Bad hour`; None = it does."""
    try:
        next(CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        return str(error)
    except StopIteration:
        return "It never comes"
    return None


def around(expression: str, zone: ZoneInfo, now: datetime) -> Around:
    """Return the times of `expression` next to `now`, in UTC. Raises CronSimError."""
    begin = (now - _ANOMALY).astimezone(zone)
    # Backwards from now itself cronsim mistakes the second pass of a repeated hour for the first
    found = next(CronSim(expression, begin, reverse=True), None)
    last = found.astimezone(UTC) if found is not None else None
    times = (each.astimezone(UTC) for each in CronSim(expression, found or begin))
    for each in times:
        if each > now:
            return Around(last, chain((each,), times))
        last = each
    return Around(last, times)


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """Return a zone of the IANA database. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{name!r} is no time zone") from error
