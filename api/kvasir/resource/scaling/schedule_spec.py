"""One schedule: a window that comes again and again, and bounds of replicas in it."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from kvasir.resource.scaling.cron import CRON_PATTERN, MAX_CRON, check_cron, zone_of
from kvasir.resource.strict_model import StrictModel, rule, rules

_CRON = (
    "write five fields: minute, hour, day of month, month, day of week; for example"
    " 30 7 * * MON-FRI"
)
_ZONE = "write one of the IANA database, for example Europe/Berlin or UTC"
_ONE_END = "a schedule ends either at end or after durationSeconds; give one of them"
_SAME = "start and end are the same; give the schedule another end"
_BOUNDS = "the schedule's minReplicas is above its maxReplicas; lower it or raise maxReplicas"


def _cron_rule(name: str, optional: str = "") -> dict[str, str]:
    return rule(
        f"{optional}self.{name}.matches(r'''{CRON_PATTERN}''')",
        f"{name} is no cron expression; {_CRON}",
        message_expression=f'"{name} " + self.{name} + " is no cron expression; {_CRON}"',
    )


def _cron(value: str) -> str:
    if not re.fullmatch(CRON_PATTERN, value):
        raise ValueError(f"{value!r} is no cron expression; {_CRON}")
    if problem := check_cron(value):
        raise ValueError(f"{value!r} is no cron expression ({problem}); {_CRON}")
    return value


def _zone(value: str) -> str:
    try:
        zone_of(value)
    except ValueError as error:
        raise ValueError(f"{error}; {_ZONE}") from None
    return value


Cron = Annotated[str, Field(min_length=9, max_length=MAX_CRON), AfterValidator(_cron)]


class ScalingSchedule(StrictModel):
    """Bounds of replicas in a window that comes again and again."""

    model_config = rules(
        _cron_rule("start"),
        _cron_rule("end", "!has(self.end) || "),
        rule("has(self.end) != has(self.durationSeconds)", _ONE_END),
        rule("!has(self.end) || self.end != self.start", _SAME),
        rule("!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas", _BOUNDS),
        # An unknown zone is an error of the rule, which says so itself
        rule(
            "self.timezone.matches('^[A-Za-z][A-Za-z0-9_+/-]*$') && self.timezone != 'Local'"
            " && timestamp('2024-01-01T00:00:00Z').getFullYear(self.timezone) > 2000",
            f"timezone is no time zone; {_ZONE}",
            message_expression=f'"timezone " + self.timezone + " is no time zone; {_ZONE}"',
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Name of the schedule in status and events; by default start."""

    start: Cron
    """Time at which the window begins, as a cron expression: minute, hour, day of month, month, day
    of week."""

    end: Cron | None = None
    """Time at which it ends, as a cron expression; either this or durationSeconds."""

    duration_seconds: Annotated[int, Field(ge=60, le=2_592_000)] | None = None
    """Seconds after which it ends; a start in the window begins it anew."""

    timezone: Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_zone)] = "UTC"
    """Time zone of start and end, of the IANA database."""

    min_replicas: Annotated[int, Field(ge=0, le=64)]
    """Replicas in the window, at least; of this, other active schedules' and the spec's own the
    largest counts."""

    max_replicas: Annotated[int, Field(ge=1, le=64)] | None = None
    """Maximum replicas in the window, in place of the spec's; of several active schedules' the
    largest counts."""

    @property
    def title(self) -> str:
        """The schedule's name, or its start."""
        return self.name or self.start

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.end is None) == (self.duration_seconds is None):
            raise ValueError(_ONE_END)
        if self.end == self.start:
            raise ValueError(_SAME)
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError(_BOUNDS)
        return self
