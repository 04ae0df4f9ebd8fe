"""Retry budget: the share of a model's own traffic that may be repeated."""

WINDOW_SECONDS = 10.0


class RetryBudget:
    """Repeats may be `ratio` of the requests of the last 10 s, and at least `floor` in that time.

    A ratio bounds what a fault can add to the load, where a fixed number of retries a request
    multiplies it (Google's SRE book, "Handling Overload", per-client retry budget). Both counts
    are those of the present window plus the part of the one before that is not 10 s old. It reads
    no clock: `now` is any monotonic time in seconds.
    """

    __slots__ = ("_before", "_floor", "_ratio", "_requests", "_since", "_spent", "refused")

    def __init__(self, ratio: float = 0.2, floor: int = 10) -> None:
        self._ratio = ratio
        self._floor = floor
        self._requests = 0
        self._spent = 0
        self._before = (0, 0)
        self._since = 0.0
        self.refused = 0
        """Repeats that were asked for in vain, ever."""

    def request(self, now: float) -> None:
        """A request came."""
        if now - self._since >= WINDOW_SECONDS:
            self._turn(now)
        self._requests += 1

    def spend(self, now: float) -> bool:
        """Return True if one more repeat is allowed; it is counted then."""
        if now - self._since >= WINDOW_SECONDS:
            self._turn(now)
        left = 1.0 - (now - self._since) / WINDOW_SECONDS
        requests = self._requests + left * self._before[0]
        spent = self._spent + left * self._before[1]
        if spent + 1 > max(self._floor, self._ratio * requests):
            self.refused += 1
            return False
        self._spent += 1
        return True

    def _turn(self, now: float) -> None:
        age = now - self._since
        recent = age < 2 * WINDOW_SECONDS
        self._before = (self._requests, self._spent) if recent else (0, 0)
        self._requests = self._spent = 0
        self._since = self._since + WINDOW_SECONDS if recent else now
