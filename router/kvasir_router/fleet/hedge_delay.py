"""When a unary request has taken so long that asking a second replica is worth it."""

from collections import deque

MIN_SAMPLES = 20
_SAMPLES = 128
_EVERY = 16


class HedgeDelay:
    """The 95th percentile of a model's last 128 unary answers, looked at anew every 16.

    Source: Dean and Barroso, "The Tail at Scale" (2013): a second request after the 95th
    percentile adds 5 % of load at most and cuts the tail.
    """

    __slots__ = ("_news", "_samples", "seconds")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._news = 0
        self.seconds: float | None = None
        """None until 20 answers are known."""

    def answered(self, seconds: float) -> None:
        """A unary request was answered in this time."""
        self._samples.append(seconds)
        self._news += 1
        if len(self._samples) >= MIN_SAMPLES and (self.seconds is None or self._news >= _EVERY):
            self._news = 0
            ordered = sorted(self._samples)
            self.seconds = ordered[len(ordered) * 95 // 100]
