"""A canary under 100 requests a second, in virtual time: a bad one is rolled back within two
minutes of its first request and hurts few; a good one is promoted, and nothing is lost."""

from __future__ import annotations

import pytest
from support.canary_answers import Revision
from support.canary_fleet import START_SECONDS, CanaryFleet, VirtualLoop

SEEDS = (1, 2, 3)
LIMIT = START_SECONDS + 120.0


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> VirtualLoop:
    """The clock of everything."""
    virtual = VirtualLoop()
    monkeypatch.setattr("asyncio.get_running_loop", lambda: virtual)
    return virtual


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("canary", "reason"),
    [
        (Revision(itl=0.026), "ITLIncreased"),
        (Revision(errors=0.05), "ErrorsIncreased"),
        (Revision(errors=1.0), "ErrorsIncreased"),
        (Revision(ttft=0.5), "TTFTIncreased"),
        (Revision(refused=0.06), "RefusalsIncreased"),
    ],
)
def test_a_bad_canary_is_rolled_back(
    loop: VirtualLoop, canary: Revision, reason: str, seed: int
) -> None:
    fleet = CanaryFleet(loop, canary, seed=seed)
    seconds = fleet.run(300, until="RolledBack")
    assert (fleet.phase, fleet.rollout["reason"]) == ("RolledBack", reason)
    assert seconds <= LIMIT
    fleet.run(300 - int(seconds))
    counts = fleet.counts
    assert counts.failed == 0, "what failed at the canary was answered by the stable revision"
    assert counts.slow < 0.02 * counts.requests
    assert fleet.phase == "RolledBack"
    assert [each[1] for each in fleet.stable_pods] == [fleet.old] * 4
    assert fleet.canary_pods == []


def test_an_image_that_does_not_start_is_rolled_back(loop: VirtualLoop) -> None:
    fleet = CanaryFleet(loop, Revision(), seed=1, starts=False)
    assert fleet.run(300, until="RolledBack") <= 120
    assert fleet.rollout["reason"] == "StartFailed"
    assert "no such image" in fleet.rollout["message"]
    assert fleet.counts.failed == fleet.counts.slow == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_good_canary_is_promoted(loop: VirtualLoop, seed: int) -> None:
    fleet = CanaryFleet(loop, Revision(), seed=seed)
    seconds = fleet.run(600, until="Promoted")
    assert fleet.phase == "Promoted", fleet.rollout
    assert seconds < 400
    assert fleet.counts.failed == 0
    revisions = {each[1] for each in fleet.stable_pods}
    assert len(revisions) == 1
    assert revisions != {fleet.old}
    fleet.run(30)
    assert fleet.canary_pods == []
