"""Failures of replicas, and how often a request may go to another one for them."""

from enum import Enum
from typing import NamedTuple

import msgspec

from kvasir_router.fleet.retry_budget import RetryBudget
from kvasir_router.wire.engine_json import read_error
from kvasir_router.wire.stream_end import ENGINE_DEAD, HANDOVER

MAX_CHARGED_MOVES = 2
"""Charged moves of one request, if the model's budget has them."""

MAX_HANDOVERS = 64
"""Handovers of one request. A long stream may see many rollouts, but not one engine after the
other that hands over all it gets."""


class Kind(Enum):
    """Kind of a failure, by which moving the request is charged."""

    UNSENT = 1
    """The replica never got it: free, each replica is asked once."""

    DEATH = 2
    """The replica ended with it in flight. The first time is free; after the second one the
    request itself is suspected."""

    LEAVING = 3
    """The replica gives it up before its own end, or does not answer at all: free, a few times."""

    CHARGED = 4
    """It answered that it cannot, or sent nothing for too long: on the budget."""

    HANDOVER = 5
    """It has come to the end of its drain and gives what still runs away: free."""


class Failure(NamedTuple):
    """One attempt's."""

    reason: str
    """One of a few words, for metrics."""
    kind: Kind
    seconds: float = 0.0
    """Those for which it was waited in vain, where that is the failure."""
    rest: float = 0.0
    """Those for which the replica asks to be left alone."""


_CODES = {
    ENGINE_DEAD: Kind.DEATH,
    HANDOVER: Kind.HANDOVER,
    "draining": Kind.LEAVING,
}
"""Codes of a Kvasir engine's 503."""

_RETRIED = frozenset({429, 500, 502, 503, 504})
FAULTS = frozenset({500, 502, 504})
"""Statuses of a broken engine; a full or ending one answers 429 or 503."""

_SHORT_REST = 1.0
"""Seconds of rest for one that takes no more and does not say for how long."""
REFUSED_KEY = "key_refused"
REDIRECT = "redirect"

_BROKEN = {
    "reset": Kind.DEATH,
    "connection_lost": Kind.DEATH,
    "invalid_response": Kind.CHARGED,
}


def broken(reason: str, *, is_engine: bool = True) -> Failure:
    """A connection that ended before its answer, for one of upstream.py's reasons. That of a server
    which `is_engine` is not true of tells of no process that ended."""
    return Failure(reason, _BROKEN.get(reason, Kind.CHARGED) if is_engine else Kind.CHARGED)


def interrupted(reason: str) -> Failure:
    """A stream that its engine gave up, for one of stream_end.py's reasons."""
    return Failure(reason, _CODES[reason])


def of_upstream(status: int, rest: float) -> Failure | None:
    """Return the failure of an answer of a server that is not of the fleet. Its 401 and 403 are
    about the router's key, no client's; nothing is sent where it redirects to, as it would be with
    that key. `rest`: seconds of its Retry-After."""
    if status in (401, 403):
        return Failure(REFUSED_KEY, Kind.CHARGED)
    if 300 <= status < 400:
        return Failure(REDIRECT, Kind.CHARGED)
    if status == 429:
        rest = rest or _SHORT_REST
    return Failure(str(status), Kind.CHARGED, rest=rest) if status in _RETRIED else None


def of_answer(status: int, body: bytes, contract: bool) -> Failure | None:
    """Return an answer's failure; None when it is to be passed on, errors of the client's included.
    Only of engines that keep the contract is the `body` of a 503 believed."""
    if status not in _RETRIED:
        return None
    if status == 503 and contract and body:
        try:
            code = read_error(body).error.code or ""
        except msgspec.MsgspecError:
            code = ""
        if code in _CODES:
            return Failure(code, _CODES[code])
    return Failure(str(status), Kind.CHARGED)


class Moves:
    """One request's moves from replica to replica."""

    __slots__ = ("_charged", "_deaths", "_handovers", "_left")

    def __init__(self, max_free: int, deaths: int = 0) -> None:
        """`max_free` 0: the request goes nowhere else because of an end, planned or not. `deaths`:
        those of replicas of another model, that it was in flight at."""
        self._left = max_free
        self._handovers = MAX_HANDOVERS if max_free else 0
        self._charged = 0
        self._deaths = deaths

    @property
    def deaths(self) -> int:
        """Return how many replicas ended with the request in flight."""
        return self._deaths

    @property
    def in_doubt(self) -> bool:
        """Return whether a replica ended with the request in flight. Then kept connections tell too
        little: one may have been closed before the request, by an end that it has no part in."""
        return self._deaths > 0

    def failed(self, kind: Kind) -> bool:
        """Hear of a failure; whether the request is now suspected of ending engines."""
        if kind is Kind.DEATH:
            self._deaths += 1
        return self._deaths > 1

    def allows(self, kind: Kind, budget: RetryBudget, now: float) -> bool:
        """Return whether the request may go to another replica, and count it if so."""
        if kind is Kind.UNSENT:
            return True
        if kind is Kind.CHARGED:
            if self._charged >= MAX_CHARGED_MOVES or not budget.spend(now):
                return False
            self._charged += 1
            return True
        if kind is Kind.HANDOVER:
            self._handovers -= 1
            return self._handovers >= 0
        if self._left <= 0:
            return False
        self._left -= 1
        return True
