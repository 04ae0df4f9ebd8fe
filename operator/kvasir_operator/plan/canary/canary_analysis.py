"""Judge a canary by its samples and those of the stable revision: pure.

Five comparisons, each of the canary with the stable revision over the same time: the part of
requests that failed, the part that was refused, and for the time to first token and the time
between tokens the percentile that the spec names and the whole distribution. A canary is bad in one
of them if the difference is beyond the bound of the spec *and* chance does not explain it (ALPHA).
It passes with samples enough and no difference beyond a bound. Between the two it goes on. For
latencies the bound is taken off first: the canary's values are divided by 1 + increase, and what is
left is tested.

Looking every few seconds at samples that grow tests the same hypothesis again and again. ALPHA is
small for that reason, and below `minSamples` only what is far beyond it (EARLY_ALPHA) counts. How
often a good canary is rolled back all the same is measured in
tests/unit/operator/plan/canary/test_false_positives.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import ceil, log

from kvasir.resource.deployment_status import Reason
from kvasir.resource.rollout.rollout_spec import CanaryAnalysis, LatencyCheck
from kvasir.resource.rollout.rollout_status import RevisionFigures, SamplesStatus
from kvasir.wire.canary_samples import (
    BIN_RATIO,
    CanarySamples,
    Histogram,
    RevisionSamples,
    seconds_of,
)
from kvasir_operator.plan.canary.significance import (
    fisher_exact,
    mann_whitney,
    quantile,
    quantile_test,
    shifted,
)

ALPHA = 1e-5
"""Chance below which a difference counts, with `minSamples` of both revisions."""
EARLY_ALPHA = 1e-6
"""The same before there are so many."""
MIN_COMPARED = 30
"""Samples of each revision below which nothing is compared: the normal approximation does not hold,
and one bad answer would be a difference."""
MIN_FAILED = 8
"""Failed requests of a canary that are compared all the same: routers' circuit breakers keep one
that fails them all from getting many more."""


class Outcome(Enum):
    """Decision on a canary."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """Outcome of one look, and why."""

    outcome: Outcome
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One figure of both revisions."""

    reason: Reason
    beyond: bool
    """The canary's is above the bound, be it by chance."""
    chance: float
    """Chance of a difference like this, or a larger one, between equals."""
    message: str


def judge(samples: CanarySamples, wanted: CanaryAnalysis) -> CanaryVerdict:
    """Return the verdict on what was counted until now."""
    compared = list(_comparisons(samples, wanted))
    fewer = min(samples.canary.requests, samples.stable.requests)
    alpha = ALPHA if fewer >= wanted.min_samples else EARLY_ALPHA
    bad = [each for each in compared if each.beyond and each.chance < alpha]
    if bad:
        worst = min(bad, key=lambda each: each.chance)
        return CanaryVerdict(Outcome.FAILED, worst.reason, worst.message)
    if fewer < wanted.min_samples:
        message = (
            f"{samples.canary.requests} requests of the canary and {samples.stable.requests} of the"
            f" stable revision were counted; minSamples is {wanted.min_samples}."
        )
        return CanaryVerdict(Outcome.UNDECIDED, Reason.TOO_FEW_SAMPLES, message)
    doubtful = next((each for each in compared if each.beyond), None)
    if doubtful is not None:
        message = f"{doubtful.message} It may be chance yet: more samples will tell."
        return CanaryVerdict(Outcome.UNDECIDED, Reason.UNDECIDED, message)
    return CanaryVerdict(
        Outcome.PASSED, Reason.NO_DIFFERENCE, "The canary does as well as it has to."
    )


def figures(samples: CanarySamples, wanted: CanaryAnalysis) -> SamplesStatus:
    """Return what the status tells of the samples."""
    return SamplesStatus(
        canary=_figures(samples.canary, wanted), stable=_figures(samples.stable, wanted)
    )


def _comparisons(samples: CanarySamples, wanted: CanaryAnalysis) -> Iterator[_Comparison]:
    canary, stable = samples.canary, samples.stable
    for reason, what, mine, theirs in (
        (Reason.ERRORS_INCREASED, "requests fail", canary.errors, stable.errors),
        (Reason.REFUSALS_INCREASED, "requests get a 4xx", canary.refused, stable.refused),
    ):
        enough = canary.requests >= MIN_COMPARED or mine >= MIN_FAILED
        if enough and stable.requests >= MIN_COMPARED:
            pairs = (mine, canary.requests), (theirs, stable.requests)
            yield _compare_ratios(reason, what, *pairs, wanted.error_increase)
    for reason, what, one, other, check in (
        (Reason.TTFT_INCREASED, "TTFT", canary.ttft, stable.ttft, wanted.ttft),
        (Reason.ITL_INCREASED, "ITL", canary.itl, stable.itl, wanted.itl),
    ):
        if min(sum(one.values()), sum(other.values())) >= MIN_COMPARED:
            yield from _compare_latencies(reason, what, one, other, check)


def _compare_ratios(
    reason: Reason, what: str, canary: tuple[int, int], stable: tuple[int, int], increase: float
) -> _Comparison:
    mine, theirs = canary[0] / canary[1], stable[0] / stable[1]
    message = (
        f"{mine:.2%} of the canary's {what}, {theirs:.2%} of the stable revision's; errorIncrease"
        f" is {increase:.2%}."
    )
    chance = fisher_exact(*canary, *stable)
    return _Comparison(reason, mine - theirs > increase, chance, message)


def _compare_latencies(
    reason: Reason, what: str, canary: Histogram, stable: Histogram, check: LatencyCheck
) -> Iterator[_Comparison]:
    by = ceil(log(1 + check.increase) / log(BIN_RATIO))
    allowed = shifted(canary, by)
    for percentile, chance in (
        (check.percentile, quantile_test(allowed, stable, check.percentile / 100)),
        (50, mann_whitney(allowed, stable)),
    ):
        mine, theirs = _percentile(canary, percentile), _percentile(stable, percentile)
        message = (
            f"{what} of the canary is {mine:.4g} s at the {percentile}th percentile, {theirs:.4g} s"
            f" of the stable revision; the increase allowed is {check.increase:.0%}."
        )
        yield _Comparison(reason, mine > theirs * (1 + check.increase), chance, message)


def _figures(samples: RevisionSamples, wanted: CanaryAnalysis) -> RevisionFigures:
    requests = samples.requests
    return RevisionFigures(
        requests=requests,
        error_ratio=round(samples.errors / requests, 5) if requests else None,
        refused_ratio=round(samples.refused / requests, 5) if requests else None,
        ttft_seconds=_rounded(samples.ttft, wanted.ttft),
        itl_seconds=_rounded(samples.itl, wanted.itl),
    )


def _rounded(histogram: Histogram, check: LatencyCheck) -> float | None:
    return round(_percentile(histogram, check.percentile), 6) if histogram else None


def _percentile(histogram: Histogram, percentile: int) -> float:
    return seconds_of(quantile(histogram, percentile / 100) or 0.0)
