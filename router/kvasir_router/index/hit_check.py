"""Check of predicted hits against real ones: which predictions are believed."""

import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

import structlog

from kvasir_router.index.cached_replica import CachedReplica

HITS_PER_VERDICT = 50
MIN_CONFIRMED = 0.5
"""Part of the predicted tokens below which a source is not believed any more."""
COOLDOWN_SECONDS = 60.0

_log = structlog.get_logger("kvasir_router.index")


class HitSource(StrEnum):
    """Source of a prediction."""

    EXACT = "exact"
    """The replica's own block events."""
    SPECULATIVE = "speculative"
    """The prompt was sent there a moment ago: its events are still to come."""
    APPROXIMATE = "approximate"
    """The prompt was sent there before."""

    __hash__ = str.__hash__  # Enum's own is a function in Python


class Hit:
    """Part of a prompt that a replica is believed to have."""

    __slots__ = ("source", "text_blocks", "tokens")

    def __init__(self, text_blocks: int, tokens: float, source: HitSource) -> None:
        self.text_blocks = text_blocks
        """Leading blocks of its text (kvasir.wire.text_chain)."""
        self.tokens = tokens
        """That it saves computing."""
        self.source = source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hit) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        return f"Hit{self._content}"

    @property
    def _content(self) -> tuple[int, float, HitSource]:
        return self.text_blocks, self.tokens, self.source


class HitCheck:
    """Compare predictions with the engines' usage, for each replica and source.

    After every 50 predicted hits a source of which less than half of the predicted tokens were in
    the cache is turned off for the replica, and tried again after a minute. A replica that has more
    in its cache than was predicted is no reason to doubt: that is only counted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[tuple[CachedReplica, HitSource], list[float]] = {}
        """Hits, predicted and confirmed tokens since the last verdict."""
        self._off: dict[tuple[CachedReplica, HitSource], float] = {}
        """Until when."""
        self.predicted: Counter[tuple[CachedReplica, HitSource]] = Counter()
        """Tokens."""
        self.confirmed: Counter[tuple[CachedReplica, HitSource]] = Counter()
        """Part of the predicted tokens that was in the cache."""
        self.turned_off: Counter[tuple[CachedReplica, HitSource]] = Counter()
        self.surprises: Counter[CachedReplica] = Counter()
        """Requests without a predicted hit of which something was in the cache."""

    @property
    def doubts(self) -> bool:
        """True if any prediction is not used."""
        return bool(self._off)

    def believes(self, replica: CachedReplica, source: HitSource) -> bool:
        """Return True if the source's predictions for the replica are used."""
        until = self._off.get((replica, source))
        if until is None:
            return True
        if until > self._clock():
            return False
        del self._off[replica, source]
        return True

    def observed(self, replica: CachedReplica, hit: Hit | None, cached: int) -> None:
        """A request that was sent because of `hit` had `cached` tokens in the cache."""
        if hit is None:
            self.surprises[replica] += cached > 0
            return
        key = replica, hit.source
        confirmed = min(hit.tokens, cached)
        self.predicted[key] += round(hit.tokens)
        self.confirmed[key] += round(confirmed)
        running = self._running.setdefault(key, [0, 0.0, 0.0])
        running[0] += 1
        running[1] += hit.tokens
        running[2] += confirmed
        if running[0] >= HITS_PER_VERDICT:
            del self._running[key]
            if running[2] < MIN_CONFIRMED * running[1]:
                self._turn_off(*key, running[2] / running[1])

    def forget_replica(self, replica: CachedReplica) -> None:
        """The replica went, or starts anew."""
        del self.surprises[replica]
        for source in HitSource:
            for memory in (self._running, self._off):
                memory.pop((replica, source), None)
            for counter in (self.predicted, self.confirmed, self.turned_off):
                del counter[replica, source]

    def _turn_off(self, replica: CachedReplica, source: HitSource, share: float) -> None:
        self._off[replica, source] = self._clock() + COOLDOWN_SECONDS
        self.turned_off[replica, source] += 1
        _log.warning(
            "predicted cache hits are not real; the source is not used for a minute",
            replica=replica.id,
            source=source.value,
            confirmed=round(share, 2),
        )
