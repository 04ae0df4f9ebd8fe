"""Numbers of one model, which each request touches."""

from bisect import bisect_left
from collections import Counter
from math import inf

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
)


class Distribution:
    """A histogram of seconds over fixed buckets."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds with cumulative counts, as Prometheus has them."""
        result = []
        count = 0
        for bound, here in zip((*_SECONDS, inf), self.counts, strict=True):
            count += here
            result.append(("+Inf" if bound == inf else str(float(bound)), float(count)))
        return result


class ModelMetrics:
    """Numbers of one model."""

    def __init__(self) -> None:
        self.codes: Counter[int] = Counter()
        self.retries: Counter[str] = Counter()
        self.duration = Distribution()
        self.first_byte = Distribution()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.refusals: Counter[str] = Counter()
        self.broken = 0
        self.disconnects = 0
        self.migrations: Counter[str] = Counter()
        self.hedges: Counter[str] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        """By the model that answered in its place, and the reason."""
        self.poison: Counter[str] = Counter()
        self.deadlines = 0
