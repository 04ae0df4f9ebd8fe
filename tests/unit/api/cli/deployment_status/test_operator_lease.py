"""When a Lease says that its operator is dead; the clock of this machine may be wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvasir.cli.deployment_status.operator_lease import lease_of, why_dead


def lease(age: float | None = 0, version: str = "1", holder: str = "pod_1") -> dict[str, Any]:
    spec: dict[str, Any] = {"holderIdentity": holder, "leaseDurationSeconds": 15}
    if age is not None:
        renewed = datetime.now(UTC) - timedelta(seconds=age)
        spec["renewTime"] = renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"metadata": {"resourceVersion": version}, "spec": spec}


class Seen:
    """What is read one after the other, the last for ever; and how long was waited."""

    def __init__(self, *leases: dict[str, Any] | None) -> None:
        self.leases = list(leases)
        self.waited = 0.0

    async def read(self) -> dict[str, Any] | None:
        return self.leases.pop(0) if len(self.leases) > 1 else self.leases[0]

    async def pause(self, seconds: float) -> None:
        self.waited += seconds


@pytest.mark.parametrize(
    ("controller", "place"),
    [
        ("kvasir.dev/ml/kvasir-operator", ("ml", "kvasir-operator")),
        ("kvasir.dev/ml", None),
        ("example.com/ml/operator", None),
        ("", None),
    ],
)
def test_a_controller_names_its_lease(controller: str, place: tuple[str, str] | None) -> None:
    assert lease_of(controller) == place


async def test_one_renewed_lately_is_held_and_nothing_is_waited_for() -> None:
    seen = Seen(lease())
    assert await why_dead(seen.read, seen.pause) is None
    assert seen.waited == 0


@pytest.mark.parametrize("gone", [None, lease(holder=""), {"metadata": {}, "spec": {}}])
async def test_one_that_is_given_back_or_not_there_is_nobodys(gone: Any) -> None:
    for seen in (Seen(gone), Seen(lease(900), gone)):
        assert await why_dead(seen.read, seen.pause) == "nobody holds"


@pytest.mark.parametrize("age", [16, 900, -900, None])
async def test_one_that_looks_old_is_dead_when_its_duration_goes_by(age: float | None) -> None:
    seen = Seen(lease(age))
    said = await why_dead(seen.read, seen.pause)
    assert said is not None
    assert said.endswith("nobody has renewed")
    assert seen.waited == 15


@pytest.mark.parametrize("age", [900, -900])
async def test_a_wrong_clock_makes_no_operator_dead(age: float) -> None:
    seen = Seen(lease(age), lease(age), lease(age - 3, "2"))
    assert await why_dead(seen.read, seen.pause) is None
    assert seen.waited == 2
