from __future__ import annotations

from typing import Any

import pytest

from kvasir_operator.readiness_gates import awaits_confirmation, verdict_on


def gated(make: Any, *, gate: tuple[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A pod whose gate is (status, the run it is about)."""
    pod = make.pod("a", **more)
    pod["spec"]["readinessGates"] = [{"conditionType": "kvasir.dev/routed"}]
    conditions = [c for c in pod["status"]["conditions"] if c["type"] != "kvasir.dev/routed"]
    if gate is not None:
        conditions.append({"type": "kvasir.dev/routed", "status": gate[0], "message": gate[1]})
    pod["status"]["conditions"] = conditions
    return pod  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("pod", "served", "verdict"),
    [
        ({"up": True}, {"uid-a/0"}, "True"),
        ({"up": True}, {"uid-a/1", "other/0"}, None),
        ({"up": True}, None, None),
        ({"up": False}, {"uid-a/0"}, None),
        # Open: routers that come later, or forget it, do not close it
        ({"up": True, "gate": ("True", "uid-a/0")}, set(), None),
        ({"up": True, "gate": ("True", "uid-a/0")}, None, None),
        ({"up": False, "gate": ("True", "uid-a/0")}, set(), None),
        # The engine began anew: closed until routers serve its new run
        ({"up": False, "restarts": 1, "gate": ("True", "uid-a/0")}, set(), "False"),
        ({"up": True, "restarts": 1, "gate": ("True", "uid-a/0")}, {"uid-a/0"}, "False"),
        ({"up": True, "restarts": 1, "gate": ("True", "uid-a/0")}, {"uid-a/1"}, "True"),
        ({"up": True, "restarts": 1, "gate": ("False", "uid-a/1")}, {"uid-a/1"}, "True"),
        ({"up": False, "restarts": 1, "gate": ("False", "uid-a/1")}, None, None),
    ],
)
def test_verdicts(make: Any, pod: Any, served: set[str] | None, verdict: str | None) -> None:
    found = verdict_on(gated(make, **pod), served)
    assert (found and found[0]) == verdict


def test_pods_without_the_gate_wait_for_nobody(make: Any) -> None:
    pod = make.pod("a", up=True)
    assert not awaits_confirmation(pod)
    assert verdict_on(pod, {"uid-a/0"}) is None
