"""An operator that was frozen while another took over writes nothing any more when it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operator_freezes import eventually, freezes

from kvasir_operator.kinds import LEASES

TRACES = ("Traceback", "Exception Group Traceback")
LEASE_SECONDS = 9.0
"""Long enough that a busy machine does not keep a leader from renewing it."""


@pytest.mark.slow
async def test_never_two_writers(plane: Any, tmp_path: Path) -> None:
    async with freezes(plane, LEASE_SECONDS, tmp_path) as two:
        for _ in range(2):
            found = await two.freeze(0.0)
            assert found.overlapping == []
            assert found.taken_after_seconds >= LEASE_SECONDS * 2 / 3
            assert found.exit_code == 1
            assert found.writes_before > 0
            assert found.writes_of_the_next > 0
        logs = "".join((tmp_path / f"{each.name}.log").read_text() for each in two.candidates)
    assert "kvasir operator: the Lease could not be renewed in time\n" in logs
    # Log lines are JSON, so one that begins so is what the interpreter printed at the end
    assert not [line for line in logs.splitlines() if line.lstrip(" +|").startswith(TRACES)]


@pytest.mark.slow
async def test_the_lease_is_kept_while_the_operator_waits_for_its_kind(
    plane: Any, cluster: Any, tmp_path: Path
) -> None:
    async with freezes(plane, LEASE_SECONDS, tmp_path) as two:
        for gateway in two.gateways:
            gateway.refused = "/apis/kvasir.dev/v1alpha1"

        def renewals() -> list[str]:
            return [each.operator for each in two.writes if each.is_lease]

        async def renewed() -> bool:
            # More than one duration of the Lease has room for, so it did not lapse once
            return len(renewals()) > 12

        await eventually(renewed, "renewals")
        # Both may have tried to create it, and one was refused
        assert len(set(renewals()[2:])) == 1
        assert not [each for each in two.writes if not each.is_lease]
        leases = await cluster.list(LEASES, two.namespace)
        assert [each["spec"]["leaseTransitions"] for each in leases] == [0]
        for gateway in two.gateways:
            gateway.refused = ""

        async def works() -> bool:
            return any(not each.is_lease for each in two.writes)

        await eventually(works, "a leader at work")
