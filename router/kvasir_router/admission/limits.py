"""A key's limits: requests and tokens a minute, and a budget of tokens a day.

An estimate is taken at admission and corrected when the real usage is known, so that many requests
at once cannot pass a limit together. Nothing here reads a clock.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple

MINUTE = 60.0
DAY = 86_400


class Limit(Enum):
    """Limit that a request would have exceeded."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    BUDGET = "tokens_per_day"


class Excess(NamedTuple):
    """Reason a request exceeds a limit, and the time until it would not."""

    limit: Limit
    allowed: float
    """Amount that the limit allows, for this router."""
    seconds: float
    """Seconds until there is room."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Amounts that a key may use; None = without limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    tokens_per_day: float | None = None

    def divided(self, routers: int, *, whole_day: bool = False) -> "Allowance":
        """This router's part, when each of `routers` gets as many of the requests; `whole_day`: the
        budget of a day is not divided, since the routers know what all of them use."""
        return Allowance(
            *(
                None if limit is None else limit / count
                for limit, count in (
                    (self.requests_per_minute, routers),
                    (self.tokens_per_minute, routers),
                    (self.tokens_per_day, 1 if whole_day else routers),
                )
            )
        )


class TokenBucket:
    """Hold one minute's worth and fill evenly (https://en.wikipedia.org/wiki/Token_bucket).

    It may go below zero when more was used than taken: then nothing is given until that is paid.
    """

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: float, now: float) -> None:
        self.per_minute = per_minute
        self._level = self._capacity
        self._at = now

    @property
    def _capacity(self) -> float:
        # A share of less than one request a minute still lets one through, more rarely.
        return max(self.per_minute, 1.0)

    def level(self, now: float) -> float:
        """Return the amount that can be taken now."""
        if now > self._at:
            filled = self._level + (now - self._at) * self.per_minute / MINUTE
            self._level = min(filled, self._capacity)
            self._at = now
        return self._level

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` can be taken; 0 = now. More than the bucket holds counts as all
        that it holds, so that nothing waits forever."""
        missing = min(amount, self._capacity) - self.level(now)
        if missing <= 0:
            return 0.0
        return missing / self.per_minute * MINUTE if self.per_minute else inf

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, whether or not it is there."""
        self._level = self.level(now) - amount

    def give_back(self, amount: float, now: float) -> None:
        """Give back a part of what was taken; negative = more was used."""
        self._level = min(self.level(now) + amount, self._capacity)

    @property
    def state(self) -> tuple[float, float]:
        """Return what is used of all that it holds, and when that was so."""
        return self._capacity - self._level, self._at

    def restore(self, used: float, at: float) -> None:
        """Have the state of a bucket that may have had another limit."""
        self._level, self._at = self._capacity - used, at

    def resize(self, per_minute: float, now: float) -> None:
        """Another limit from now on; what is used stays used."""
        used = self._capacity - self.level(now)
        self.per_minute = per_minute
        self._level = self._capacity - used


class DailyBudget:
    """Tokens used since 00:00 UTC, with those set aside for requests that run.

    A request is admitted while anything is left, so the last ones may go over by their own size.
    """

    __slots__ = ("_day", "limit", "used")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.used = 0.0
        self._day = 0

    def wait(self, unix: float, elsewhere: float = 0.0) -> float:
        """Seconds until something is left; 0 = now. `elsewhere`: tokens of today that are not in
        `used`."""
        self._turn(unix)
        return 0.0 if self.used + elsewhere < self.limit else DAY - unix % DAY

    def use(self, tokens: float, unix: float) -> None:
        self._turn(unix)
        self.used += tokens

    def correct(self, tokens: float, since: float, unix: float) -> None:
        """Correct by the tokens used beyond those set aside at `since`; negative = fewer. What was
        set aside yesterday is not given back today."""
        self._turn(unix)
        set_aside_today = since // DAY == unix // DAY
        self.used += tokens if set_aside_today else max(tokens, 0)

    @property
    def state(self) -> tuple[float, float]:
        """Return what is used, and on which day since 1970."""
        return self.used, self._day

    def restore(self, used: float, day: float) -> None:
        """Have another budget's state."""
        self.used, self._day = used, int(day)

    def _turn(self, unix: float) -> None:
        day = int(unix // DAY)
        if day != self._day:
            self._day = day
            self.used = 0.0


class KeyLimits:
    """State of one key. `now` is a monotonic time, by which buckets fill; `unix` the time of day,
    by which budgets turn; both in seconds."""

    __slots__ = ("_budget", "_requests", "_tokens", "elsewhere")

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.elsewhere = 0.0
        """Tokens of today that were used before this router began, and in others."""
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self._budget: DailyBudget | None = None
        self.change(allowance, now)

    def change(self, allowance: Allowance, now: float) -> None:
        """Other limits from now on; what is used stays used."""
        self._requests = _resized(self._requests, allowance.requests_per_minute, now)
        self._tokens = _resized(self._tokens, allowance.tokens_per_minute, now)
        if allowance.tokens_per_day is None:
            self._budget = None
        elif self._budget is None:
            self._budget = DailyBudget(allowance.tokens_per_day)
        else:
            self._budget.limit = allowance.tokens_per_day

    def admit(self, tokens: int, now: float, unix: float) -> Excess | None:
        """Take a request and `tokens`, or nothing at all and say why."""
        requests, bucket, budget = self._requests, self._tokens, self._budget
        if requests is not None and (seconds := requests.wait(1.0, now)):
            return Excess(Limit.REQUESTS, requests.per_minute, seconds)
        if bucket is not None and (seconds := bucket.wait(tokens, now)):
            return Excess(Limit.TOKENS, bucket.per_minute, seconds)
        if budget is not None and (seconds := budget.wait(unix, self.elsewhere)):
            return Excess(Limit.BUDGET, budget.limit, seconds)
        if requests is not None:
            requests.take(1.0, now)
        if bucket is not None:
            bucket.take(tokens, now)
        if budget is not None:
            budget.use(tokens, unix)
        return None

    def settle(self, reserved: int, used: int, since: float, now: float, unix: float) -> None:
        """A request for which `reserved` tokens were taken at `since` (Unix) used `used`."""
        if self._tokens is not None:
            self._tokens.give_back(reserved - used, now)
        if self._budget is not None:
            self._budget.correct(used - reserved, since, unix)

    @property
    def parts(self) -> tuple[TokenBucket | DailyBudget | None, ...]:
        """Return the buckets and the budget of the key; None for what has no limit."""
        return self._requests, self._tokens, self._budget


def _resized(
    bucket: TokenBucket | None, per_minute: float | None, now: float
) -> TokenBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return TokenBucket(per_minute, now)
    if bucket.per_minute != per_minute:
        bucket.resize(per_minute, now)
    return bucket
