"""Whatever a cluster shows, a plan is made of it, the same each time, with a status that fits."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MOMENTS = st.sampled_from(["2026-01-02T03:00:00Z", "2026-01-02T03:04:00Z"])
STATES = st.sampled_from(
    [
        {},
        {"waiting": {"reason": "ImagePullBackOff"}},
        {"waiting": {"reason": "CrashLoopBackOff", "message": "x" * 3000}},
        {"waiting": {"reason": "ContainerCreating"}},
        {"running": {"startedAt": "2026-01-02T03:03:00Z"}},
        {"terminated": {"exitCode": 1, "message": "no JSON"}},
    ]
)
CONDITIONS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["PodScheduled", "ContainersReady", "Ready", "kvasir.dev/routed", "Odd"]
        ),
        "status": st.sampled_from(["True", "False", "Unknown"]),
    },
    optional={
        "lastTransitionTime": MOMENTS,
        "message": st.sampled_from(
            ["", "Insufficient nvidia.com/gpu", "volume node affinity conflict", "no"]
        ),
    },
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.sampled_from(["engine", "sidecar"])},
    optional={"state": STATES, "restartCount": st.integers(0, 9), "ready": st.booleans()},
)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Unknown"]),
        "conditions": st.lists(CONDITIONS, max_size=4),
        "containerStatuses": st.lists(CONTAINERS, max_size=2),
    },
)
SPECS = st.sampled_from(
    [
        {"model": {"uri": "builtin://kvasir-tiny"}},
        {"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 0},
        {"model": {"uri": "pvc://claim/x"}, "replicas": 3},
        {"model": {"uri": "hf://a/b"}, "parallelism": {"tensor": "auto"}, "paused": True},
        {"model": {"uri": "hf://a/b"}, "resources": {"limits": {"nvidia.com/gpu": 2}}},
        {"model": {"uri": "hf://a/b"}, "parallelism": {"tensor": "auto"}},
        {"model": {}},
        {},
    ]
)
CLAIMS = st.sampled_from(
    [
        None,
        {"metadata": {"name": "c", "uid": "c"}},
        {"metadata": {"name": "c", "uid": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}},
    ]
)


# The fixture is a set of functions: it has no state that examples could share
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=SPECS, statuses=st.lists(STATUSES, max_size=3), claim=CLAIMS, live=st.booleans())
def test_any_observation(make: Any, spec: Any, statuses: Any, claim: Any, live: bool) -> None:
    one = make.World(spec).see(claim=claim)
    if live:
        one.step()
    revision = "old" if one.observed.deployment is None else one.revision
    one.pods(*(make.pod(f"p{i}", revision, status=status) for i, status in enumerate(statuses)))
    made = one.plan()
    assert one.plan() == made
    again = one.see(resource={**one.observed.resource, "status": made.status}).plan()
    assert again.status == made.status
