"""Trend of a figure over time: Theil-Sen slope, its confidence interval, and the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

import numpy as np

BIN_SECONDS = 60.0
"""Samples of a minute become their median: neighbours in time are too alike to count each."""
MIN_BINS = 6
"""Fewer say nothing of a slope."""
_Z = 1.96
"""Standard deviations within which 95 % of a normal distribution lie."""
_MAD_TO_SIGMA = 1.4826

Series = Sequence[tuple[float, float]]
"""(seconds, value), in the order of time."""


@dataclass(frozen=True)
class Fit:
    """A straight line through a series; slopes are per second."""

    slope: float
    low: float
    """Lower end of the slope's 95 % confidence interval."""
    high: float
    """Upper end."""
    noise: float
    """Two robust standard deviations of what the line leaves over."""
    span: float
    """Seconds from the first value to the last."""


@dataclass(frozen=True)
class Verdict:
    """Judgement of one figure, over the second half of a series: the first is its warm-up."""

    per_hour: float
    low_per_hour: float
    high_per_hour: float
    first_half_per_hour: float
    growth: float
    """Over the time that was judged, by the line."""
    allowed: float
    """Growth within the noise, or the smallest that counts."""
    minutes: float
    """Time that was judged."""
    level: float
    """Median of the time that was judged."""
    flat: bool


def binned(series: Series, seconds: float = BIN_SECONDS) -> list[tuple[float, float]]:
    """Return the medians of times and values of each bin."""
    found = []
    for _, group in groupby(series, lambda sample: math.floor(sample[0] / seconds)):
        times, values = zip(*group, strict=True)
        found.append((median(times), median(values)))
    return found


def fit(series: Series) -> Fit:
    """Return the Theil-Sen line, with Sen's interval (by the variance of Kendall's S). Raises
    ValueError for fewer than three values."""
    if len(series) < 3:
        raise ValueError(f"{len(series)} values have no trend")
    times, values = (np.array(column, dtype=float) for column in zip(*series, strict=True))
    first, second = np.triu_indices(len(times), 1)
    slopes = np.sort((values[second] - values[first]) / (times[second] - times[first]))
    slope = float(np.median(slopes))
    count, pairs = len(times), len(slopes)
    reach = _Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = slopes[max(0, math.floor((pairs - reach) / 2))]
    high = slopes[min(pairs - 1, math.ceil((pairs + reach) / 2))]
    left = values - slope * times
    noise = 2 * _MAD_TO_SIGMA * float(np.median(np.abs(left - np.median(left))))
    return Fit(slope, float(low), float(high), noise, float(times[-1] - times[0]))


def judge(series: Series, smallest: float) -> Verdict | None:
    """Return the verdict on a series; None where it is too short for one.

    It is flat unless it grows for sure (the whole interval is above 0) and by more than noise and
    `smallest`, which is the least growth that counts.
    """
    bins = binned(series)
    half = len(bins) // 2
    if half < MIN_BINS:
        return None
    before, line = fit(bins[:half]), fit(bins[half:])
    growth, allowed = line.slope * line.span, max(line.noise, smallest)
    return Verdict(
        per_hour=line.slope * 3600,
        low_per_hour=line.low * 3600,
        high_per_hour=line.high * 3600,
        first_half_per_hour=before.slope * 3600,
        growth=growth,
        allowed=allowed,
        minutes=line.span / 60,
        level=median(value for _, value in bins[half:]),
        flat=line.low <= 0 or growth <= allowed,
    )
