"""A circuit breaker: a replica that keeps failing gets a pause, then one request as a trial."""

from enum import Enum


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


class CircuitBreaker:
    """Open after `threshold` failures in a row, for `pause` seconds, doubled each time the trial
    fails, up to `max_pause`. It reads no clock: `failed` says how long to wait before `retry`."""

    def __init__(self, threshold: int = 5, pause: float = 1.0, max_pause: float = 30.0) -> None:
        self.state = BreakerState.CLOSED
        self._threshold = threshold
        self._first_pause = self._pause = pause
        self._max_pause = max_pause
        self._failures = 0
        self._trial_running = False

    @property
    def allows(self) -> bool:
        """True if a request may be sent."""
        return self.state is BreakerState.CLOSED or (
            self.state is BreakerState.TRIAL and not self._trial_running
        )

    def started(self) -> None:
        """A request is sent; in the trial state it is the only one."""
        self._trial_running = self.state is BreakerState.TRIAL

    def succeeded(self) -> None:
        self._failures = 0
        if self.state is BreakerState.TRIAL:
            self.state = BreakerState.CLOSED
            self._pause = self._first_pause
        self._trial_running = False

    def abandoned(self) -> None:
        """A request ended, perhaps without saying anything of the replica: the client left."""
        self._trial_running = False

    def failed(self) -> float | None:
        """Return the seconds after which `retry` is to be called, when this opens the breaker."""
        self._failures += 1
        self._trial_running = False
        if self.state is BreakerState.OPEN:
            return None
        if self.state is BreakerState.CLOSED and self._failures < self._threshold:
            return None
        pause = self._pause
        self._pause = min(pause * 2, self._max_pause)
        self.state = BreakerState.OPEN
        return pause

    def reset(self) -> None:
        """The replica is another process now: what the last one did says nothing of it."""
        self.state = BreakerState.CLOSED
        self._pause = self._first_pause
        self._failures = 0
        self._trial_running = False

    def retry(self) -> None:
        """The pause is over: allow one trial."""
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.TRIAL
