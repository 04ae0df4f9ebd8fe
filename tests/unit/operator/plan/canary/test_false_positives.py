"""A good canary is not rolled back by noise, and a bad one is found in time: by seeds.

The figures of docs/canary.md are these with 1,000 seeds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.canary_answers import Revision, looks

from kvasir.resource.deployment_status import Reason
from kvasir.resource.rollout.rollout_spec import CanaryAnalysis
from kvasir_operator.plan.canary.canary_analysis import Outcome, judge

WANTED = CanaryAnalysis()
STEADY = Revision()
NOISY = Revision(itl_spread=0.5, ttft_spread=1.0, errors=0.01, refused=0.05)
SEEDS = range(12)


def first_failure(canary: Revision, stable: Revision, seed: int) -> tuple[float, Reason] | None:
    """Seconds until the canary is rolled back at 10 requests a second, looked at every 5 s."""
    for at, samples in looks(canary, stable, seed=seed):
        verdict = judge(samples, WANTED)
        if verdict.outcome is Outcome.FAILED:
            return at, verdict.reason
    return None


@pytest.mark.parametrize("stable", [STEADY, NOISY])
def test_an_equal_canary_is_not_rolled_back(stable: Revision) -> None:
    assert [first_failure(stable, stable, seed) for seed in SEEDS] == [None] * len(SEEDS)


@pytest.mark.parametrize("stable", [STEADY, NOISY])
@pytest.mark.parametrize(
    ("change", "reason"),
    [({"itl": 0.026}, Reason.ITL_INCREASED), ({"errors": 0.05}, Reason.ERRORS_INCREASED)],
)
def test_a_bad_canary_is_rolled_back_in_two_minutes(
    stable: Revision, change: dict[str, float], reason: Reason
) -> None:
    for seed in SEEDS:
        found = first_failure(replace(stable, **change), stable, seed)
        assert found is not None
        assert found[1] is reason
