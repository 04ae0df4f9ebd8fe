"""Days of load, second by second."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from scaling_fleet import Second

DAY = 86_400
PEAK = 7_000.0
"""Requests a second at the peak of the day, without bursts."""
PROMPT = 1000.0


def _diurnal(now: int) -> float:
    """Part of the peak: a fifth at four in the morning, all at four in the afternoon."""
    return 0.6 - 0.4 * math.cos((now / DAY - 1 / 6) * 2 * math.pi)


def _bursts(draw: random.Random, every: float, height: float) -> list[float]:
    """Factors: bursts that come every so many seconds, rise in half a minute and last minutes."""
    factors = [1.0] * DAY
    at = draw.expovariate(1 / every)
    while at < DAY:
        lasts, high = draw.uniform(120, 600), draw.uniform(0.3, 1.0) * height
        for second in range(int(at), min(DAY, int(at + lasts))):
            rise = min(1.0, (second - at) / 30, (at + lasts - second) / 30)
            factors[second] += high * max(0.0, rise)
        at += draw.expovariate(1 / every)
    return factors


def _noise(draw: random.Random, mean: float) -> float:
    """Return a number of arrivals: Poisson's, by its normal approximation."""
    return max(0.0, draw.gauss(mean, math.sqrt(mean)))


def _bursty(seed: int, every: float = 1500.0, height: float = 0.8) -> list[Second]:
    draw = random.Random(seed)
    factors = _bursts(draw, every, height)
    return [Second(_noise(draw, PEAK * _diurnal(now) * factors[now]), PROMPT) for now in range(DAY)]


def _flash(seed: int) -> list[Second]:
    draw = random.Random(seed)
    begin = draw.uniform(0.3, 0.8) * DAY
    day = []
    for now in range(DAY):
        crowd = 0.5 * max(0.0, min(1.0, (now - begin) / 60, (begin + 1800 - now) / 300))
        day.append(Second(_noise(draw, PEAK * (0.5 * _diurnal(now) + crowd)), PROMPT))
    return day


def _uneven(seed: int) -> list[Second]:
    draw = random.Random(seed)
    level, day = 0.0, []
    for now, second in enumerate(_bursty(seed, height=0.4)):
        if now % 10 == 0:
            level = 0.995 * level + draw.gauss(0.0, 0.05)
        prompt = PROMPT * math.exp(max(-1.2, min(1.2, level)))
        day.append(Second(second.requests / 2, prompt))
    return day


TRACES: dict[str, Callable[[int], list[Second]]] = {
    "bursty": _bursty,
    "burstier": lambda seed: _bursty(seed, 700.0, 1.2),
    "diurnal": lambda seed: _bursty(seed, 1e9),
    "flash crowd": _flash,
    "uneven prompts": _uneven,
}
"""Traces by name."""
TUNED = "bursty"
"""The trace on which ours was tuned, with a seed of its own."""
