"""Tests of whether chance explains a difference between two samples; one-sided, without tables."""

from __future__ import annotations

from collections.abc import Mapping
from math import erfc, exp, inf, lgamma, sqrt

Histogram = Mapping[int, int]
"""Observations by bin."""

_NEGLIGIBLE = 1e-12


def fisher_exact(hits: int, of: int, other_hits: int, of_others: int) -> float:
    """Return the chance that so many of all hits, or more, fall on the first sample, if both have
    the same rate.

    Fisher's exact test of a 2 x 2 table, one-sided: the upper tail of the hypergeometric
    distribution (R. A. Fisher, On the interpretation of chi-squared from contingency tables,
    Journal of the Royal Statistical Society 85, 1922; A. Agresti, Categorical Data Analysis,
    section 3.5). It holds for any counts, also where an error is rare.
    """
    hit, everything = hits + other_hits, of + of_others
    term = exp(
        _log_choose(hit, hits)
        + _log_choose(everything - hit, of - hits)
        - _log_choose(everything, of)
    )
    chance, here = 0.0, hits
    while term > 0.0:
        chance += term
        if here >= min(hit, of):
            break
        # The next term of the distribution over this one
        up = (hit - here) * (of - here)
        down = (here + 1) * (everything - hit - of + here + 1)
        term *= up / down
        here += 1
        if up < down and term < chance * _NEGLIGIBLE:
            break
    return min(chance, 1.0)


def mann_whitney(sample: Histogram, other: Histogram) -> float:
    """Return the chance that the first sample's values are so much above the other's, or more, if
    both come from one distribution.

    The rank-sum test of H. B. Mann and D. R. Whitney (On a test of whether one of two random
    variables is stochastically larger than the other, Annals of Mathematical Statistics 18, 1947),
    which Kayenta judges canaries by, too. Normal approximation with the correction for ties (E. L.
    Lehmann, Nonparametrics, section 1.4; values of one bin are ties) and for continuity; good from
    about 20 values in each sample.
    """
    n, m = sum(sample.values()), sum(other.values())
    if not n or not m:
        return 1.0
    below, wins, ties = 0, 0.0, 0
    for place in sorted(sample.keys() | other.keys()):
        mine, theirs = sample.get(place, 0), other.get(place, 0)
        wins += mine * (below + theirs / 2)
        below += theirs
        both = mine + theirs
        ties += both**3 - both
    whole = n + m
    variance = n * m / 12 * (whole + 1 - ties / (whole * (whole - 1)))
    if variance <= 0:
        return 1.0
    return erfc((wins - n * m / 2 - 0.5) / sqrt(2 * variance)) / 2


def quantile_test(sample: Histogram, other: Histogram, part: float) -> float:
    """Return the chance that so many of the first sample are above the quantile `part` of both
    together, or more, if both have the same one.

    Mood's median test for any quantile (A. M. Mood, Introduction to the Theory of Statistics, 1950;
    W. J. Conover, Practical Nonparametric Statistics, section 4.3), with Fisher's exact test of its
    2 x 2 table: it sees a tail that a rank-sum test does not.
    """
    pooled = {place: sample.get(place, 0) + other.get(place, 0) for place in {*sample, *other}}
    bound = quantile(pooled, part)
    if bound is None:
        return 1.0
    above, others_above = _above(sample, bound), _above(other, bound)
    return fisher_exact(above, sum(sample.values()), others_above, sum(other.values()))


def quantile(sample: Histogram, part: float) -> float | None:
    """Return the place, in bins, that `part` (0 to 1) of the values are at or below: within a bin
    by the share of its values. None without a value."""
    rank = part * sum(sample.values())
    if not rank:
        return None
    seen, place = 0, -inf
    for place in sorted(sample):
        count = sample[place]
        if seen + count >= rank:
            return place - 1 + (rank - seen) / count
        seen += count
    return place


def shifted(sample: Histogram, by: int) -> dict[int, int]:
    """Return the sample as if each value were `by` bins lower."""
    return {place - by: count for place, count in sample.items()}


def _above(sample: Histogram, bound: float) -> int:
    return sum(count for place, count in sample.items() if place > bound)


def _log_choose(n: int, k: int) -> float:
    if k < 0 or k > n:
        return -inf
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
