"""Whether routers serve every engine that is up, and how long the first one took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvasir_operator.plan.observed import Observed


@pytest.fixture
def started(world: Any) -> Any:
    """Two engines are wanted."""
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 2})
    one.step()
    return one


def engines(make: Any, one: Any, up: int, routed: int) -> Any:
    return one.pods(
        *(
            make.pod(name, one.revision, up=number < up, routed=number < routed)
            for number, name in enumerate("ab")
        )
    )


@pytest.mark.parametrize(
    ("up", "routed", "routers", "silent", "verdict", "words"),
    [
        (2, 2, 2, 0, ("True", "Routed"), "Routers serve 2 of 2 engines."),
        (1, 1, 1, 0, ("True", "Routed"), "Routers serve 1 of 1 engines."),
        (2, 2, 2, 1, ("True", "Routed"), "(r0): they are not waited for"),
        (2, 2, 2, 2, ("True", "Routed"), "(r0, r1): nothing is rolled out"),
        (2, 1, 2, 1, ("False", "NotRouted"), "serve 1 of 2 engines; the others have not been"),
        (2, 1, 2, 1, ("False", "NotRouted"), "(r0): they are not waited for"),
        (2, 0, 2, 0, ("False", "NotRouted"), "serve 0 of 2 engines; the others have not been"),
        (0, 0, 2, 0, ("False", "Waiting"), "No engine of the newest revision is up."),
        (0, 0, 0, 0, ("Unknown", "NoRouter"), "No router is Ready in namespace kvasir"),
        (2, 1, 0, 0, ("Unknown", "NoRouter"), "--no-router-gate"),
        (2, 2, 0, 0, ("True", "Routed"), "Routers serve 2 of 2 engines."),
        (2, 1, 2, 2, ("False", "RoutersSilent"), "(r0, r1): nothing is rolled out"),
        (2, 1, 1, 2, ("False", "RoutersSilent"), "(r0, r1): nothing is rolled out"),
    ],
)
def test_what_routers_have_taken(
    started: Any,
    make: Any,
    up: int,
    routed: int,
    routers: int,
    silent: int,
    verdict: tuple[str, str],
    words: str,
) -> None:
    names = tuple(f"r{number}" for number in range(silent))
    one = engines(make, started.see(ready_routers=routers, silent_routers=names), up, routed)
    made = one.plan()
    found = make.condition(made, "RouterReady")
    assert found[:2] == verdict
    assert words in found[2]
    assert ("do not answer" in found[2]) == bool(silent)
    assert made.requeue == (5.0 if verdict[1] == "NotRouted" else None)


def test_until_routers_are_seen_there_are_none(make: Any) -> None:
    assert Observed(resource={}, now=make.NOW).ready_routers == 0


def test_of_many_silent_routers_four_are_named(started: Any, make: Any) -> None:
    names = tuple(f"r{number}" for number in range(5))
    one = engines(make, started.see(ready_routers=6, silent_routers=names), 2, 2)
    told = make.condition(one.plan(), "RouterReady")[2]
    assert f"on port {one.settings.router_admin_port} (r0, r1, r2, r3): they" in told


def test_without_the_gate_no_router_is_asked(started: Any, make: Any) -> None:
    started.settings = replace(started.settings, router_gate=False)
    one = engines(make, started.see(ready_routers=0), 2, 0)
    assert make.condition(one.plan(), "RouterReady")[:2] == ("True", "NotNeeded")


def test_an_engine_is_routed_when_the_kubelet_has_seen_it(started: Any, make: Any) -> None:
    pods = engines(make, started, 2, 2).observed.pods
    for each in pods[1]["status"]["conditions"]:
        if each["type"] == "Ready":
            each["status"] = "False"
    assert make.condition(started.plan(), "RouterReady")[1] == "NotRouted"


def test_the_start_is_that_of_the_engine_that_was_routed_first(started: Any, make: Any) -> None:
    assert "startup" not in engines(make, started, 2, 0).plan().status
    first, second = engines(make, started, 2, 2).observed.pods
    parts = {"scheduleSeconds": 2, "pullSeconds": 3, "loadSeconds": 7, "routeSeconds": 1}
    assert started.plan().status["startup"] == parts
    for each in first["status"]["conditions"]:
        if each["type"] == "kvasir.dev/routed":
            each["lastTransitionTime"] = "2026-01-02T04:00:00Z"
    first["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert started.plan().status["startup"] == parts
    # A restart hides when the container ran first, and clocks of two machines differ
    del second["status"]["containerStatuses"][0]["state"]
    second["metadata"]["creationTimestamp"] = "2026-01-02T03:03:30Z"
    assert started.plan().status["startup"] == {"scheduleSeconds": 0, "routeSeconds": 1}
