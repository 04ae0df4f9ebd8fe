"""Verdicts on samples: what is worse, what is not, and what is not known yet."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource.deployment_status import Reason
from kvasir.resource.rollout.rollout_spec import CanaryAnalysis
from kvasir.wire.canary_samples import CanarySamples, RevisionSamples, bin_of
from kvasir_operator.plan.canary.canary_analysis import Outcome, figures, judge

WANTED = CanaryAnalysis()


def samples(canary: dict[str, Any], stable: dict[str, Any]) -> CanarySamples:
    return CanarySamples("s", RevisionSamples(**canary), RevisionSamples(**stable))


def constant(seconds: float, count: int) -> dict[int, int]:
    return {bin_of(seconds): count}


def test_equal_revisions_pass() -> None:
    equal = {"errors": 1, "refused": 5, "ttft": constant(0.2, 500), "itl": constant(0.02, 500)}
    verdict = judge(samples({"answers": 500, **equal}, {"answers": 500, **equal}), WANTED)
    assert (verdict.outcome, verdict.reason) == (Outcome.PASSED, Reason.NO_DIFFERENCE)


@pytest.mark.parametrize(
    ("canary", "stable"), [({"answers": 499}, {"answers": 4500}), ({"answers": 500}, {})]
)
def test_too_few_of_either_revision_decide_nothing(
    canary: dict[str, Any], stable: dict[str, Any]
) -> None:
    verdict = judge(samples(canary, stable), WANTED)
    assert (verdict.outcome, verdict.reason) == (Outcome.UNDECIDED, Reason.TOO_FEW_SAMPLES)
    assert "minSamples is 500" in verdict.message


@pytest.mark.parametrize(
    ("field", "reason"),
    [("errors", Reason.ERRORS_INCREASED), ("refused", Reason.REFUSALS_INCREASED)],
)
def test_more_errors_than_chance_explains_fail(field: str, reason: Reason) -> None:
    verdict = judge(samples({"answers": 475, field: 25}, {"answers": 4491, field: 9}), WANTED)
    assert (verdict.outcome, verdict.reason) == (Outcome.FAILED, reason)
    assert "5.00%" in verdict.message
    assert "0.20%" in verdict.message


def test_errors_that_both_have_are_no_difference() -> None:
    verdict = judge(
        samples({"answers": 400, "errors": 100}, {"answers": 3600, "errors": 900}), WANTED
    )
    assert verdict.outcome is Outcome.PASSED


def test_significant_but_within_the_bound_passes() -> None:
    wanted = CanaryAnalysis.model_validate({"errorIncrease": 0.05})
    verdict = judge(
        samples({"answers": 9600, "errors": 400}, {"answers": 9900, "errors": 100}), wanted
    )
    assert verdict.outcome is Outcome.PASSED


def test_beyond_the_bound_by_what_may_be_chance_goes_on() -> None:
    verdict = judge(samples({"answers": 490, "errors": 10}, {"answers": 496, "errors": 4}), WANTED)
    assert (verdict.outcome, verdict.reason) == (Outcome.UNDECIDED, Reason.UNDECIDED)


def test_a_canary_that_fails_every_request_is_known_early() -> None:
    """Circuit breakers keep it from getting more."""
    verdict = judge(samples({"errors": 8}, {"answers": 360}), WANTED)
    assert (verdict.outcome, verdict.reason) == (Outcome.FAILED, Reason.ERRORS_INCREASED)


def test_a_few_errors_at_the_beginning_are_no_verdict() -> None:
    assert judge(samples({"errors": 7}, {"answers": 180}), WANTED).outcome is Outcome.UNDECIDED
    verdict = judge(samples({"answers": 35, "errors": 3}, {"answers": 380}), WANTED)
    assert verdict.outcome is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("name", "reason", "longer"),
    [("ttft", Reason.TTFT_INCREASED, 1.7), ("itl", Reason.ITL_INCREASED, 1.3)],
)
def test_longer_latencies_fail(name: str, reason: Reason, longer: float) -> None:
    spread = {bin_of(0.1 * 1.04**k): 100 for k in range(10)}
    worse = {bin_of(0.1 * longer * 1.04**k): 60 for k in range(10)}
    verdict = judge(samples({"answers": 600, name: worse}, {"answers": 1000, name: spread}), WANTED)
    assert (verdict.outcome, verdict.reason) == (Outcome.FAILED, reason)
    assert "percentile" in verdict.message
    within = {bin_of(0.1 * 1.08 * 1.04**k): 60 for k in range(10)}
    verdict = judge(
        samples({"answers": 600, name: within}, {"answers": 1000, name: spread}), WANTED
    )
    assert verdict.outcome is Outcome.PASSED


def test_unary_answers_alone_are_judged_by_their_errors() -> None:
    verdict = judge(samples({"answers": 500}, {"answers": 4500}), WANTED)
    assert verdict.outcome is Outcome.PASSED


def test_figures_of_the_status() -> None:
    told = figures(
        samples({"answers": 99, "errors": 1, "itl": constant(0.02, 90)}, {}), WANTED
    ).model_dump(by_alias=True, exclude_none=True)
    assert told["canary"]["requests"] == 100
    assert told["canary"]["errorRatio"] == 0.01
    assert told["canary"]["itlSeconds"] == pytest.approx(0.02, rel=0.04)
    assert told["stable"] == {"requests": 0}
