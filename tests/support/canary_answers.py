"""Draw the answers of two revisions of a model: their latencies and errors, by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from kvasir.wire.canary_samples import CanarySamples, RevisionSamples, bin_of


@dataclass(frozen=True)
class Revision:
    """How a revision answers. Latencies are log-normal, which those of engines under a mixed load
    are close to, and a part of the requests waits for a long prompt."""

    ttft: float = 0.25
    """Median seconds to the first token."""
    ttft_spread: float = 0.6
    """Standard deviation of its logarithm."""
    slow: float = 0.03
    """Part of the requests that take ten times as long to their first token."""
    itl: float = 0.02
    """Median seconds between tokens."""
    itl_spread: float = 0.25
    errors: float = 0.002
    refused: float = 0.01

    def count_one(self, draw: random.Random, samples: RevisionSamples) -> bool:
        """Count one answer; return whether it failed."""
        chance = draw.random()
        if chance < self.errors:
            samples.errors += 1
            return True
        if chance < self.errors + self.refused:
            samples.refused += 1
            return False
        samples.answers += 1
        ttft = self.ttft * draw.lognormvariate(0, self.ttft_spread)
        if draw.random() < self.slow:
            ttft *= 10
        itl = self.itl * draw.lognormvariate(0, self.itl_spread)
        for histogram, seconds in ((samples.ttft, ttft), (samples.itl, itl)):
            place = bin_of(seconds)
            histogram[place] = histogram.get(place, 0) + 1
        return False


def looks(
    canary: Revision,
    stable: Revision,
    *,
    seed: int,
    weight: float = 0.1,
    rate: float = 100.0,
    every: float = 5.0,
    seconds: float = 120.0,
) -> Iterator[tuple[float, CanarySamples]]:
    """Yield what was counted by each look, at `rate` requests a second."""
    draw = random.Random(seed)
    samples, at = CanarySamples("s"), 0.0
    while at < seconds:
        at += every
        for _ in range(round(rate * every)):
            if draw.random() < weight:
                canary.count_one(draw, samples.canary)
            else:
                stable.count_one(draw, samples.stable)
        yield at, samples
