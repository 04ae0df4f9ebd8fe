"""Models that servers of others serve: what is made, and what the status says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvasir_operator.plan.observed import UpstreamState

URLS = ["https://a.example/v1", "https://b.example/v1"]
SPEC = {"model": {"name": "hosted"}, "external": {"urls": [{"url": url} for url in URLS]}}
BAD = "its certificate is not trusted: self-signed"


def states(*given: bool | str) -> tuple[UpstreamState, ...]:
    """True and False: it is ready, or nothing is known; a text: why it is not."""
    return tuple(
        UpstreamState(url, each is True, each if isinstance(each, str) else "")
        for url, each in zip(URLS, given, strict=True)
    )


@pytest.mark.parametrize(
    ("upstreams", "phase", "ready", "reason"),
    [
        (states(True, True), "Ready", 2, "Serving"),
        ((), "Starting", 0, "Waiting"),
        (states(False, False), "Starting", 0, "Waiting"),
        (states(True, False), "Updating", 1, "Waiting"),
        (states(True, BAD), "Degraded", 1, "UpstreamUnreachable"),
        (states(BAD, BAD), "Failed", 0, "UpstreamUnreachable"),
        (states(BAD, False), "Failed", 0, "UpstreamUnreachable"),
    ],
)
def test_the_status_is_what_routers_tell(
    world: Any, make: Any, upstreams: Any, phase: str, ready: int, reason: str
) -> None:
    made = world(SPEC).see(upstreams=upstreams).plan()
    assert made.manifests == made.deletions == ()
    assert made.scale is None
    assert made.requeue == 10
    assert made.status["phase"] == phase
    assert made.status["readyReplicas"] == ready
    assert made.status["replicas"] == len(upstreams)
    status, told, message = make.condition(made, "Ready")
    assert (status, told) == (str(reason == "Serving"), reason)
    assert f"{ready} of {len(upstreams)} servers can be reached" in message
    if reason == "UpstreamUnreachable":
        assert BAD in message
        assert URLS[0 if ready == 0 else 1] in message
        assert make.condition(made, "Degraded")[0] == "True"


def test_without_routers_nothing_is_known(world: Any, make: Any) -> None:
    made = world(SPEC).see(upstreams=states(False, False), ready_routers=0).plan()
    assert make.condition(made, "RouterReady")[:2] == ("Unknown", "NoRouter")
    assert make.condition(made, "Ready")[:2] == ("False", "NoRouter")


def test_routers_that_are_silent_are_said_to_be(world: Any, make: Any) -> None:
    made = world(SPEC).see(upstreams=states(False, False), silent_routers=("r",)).plan()
    assert make.condition(made, "Ready")[1] == "RoutersSilent"


def test_where_routers_are_not_asked_it_serves_as_far_as_is_known(world: Any, make: Any) -> None:
    one = world(SPEC).see(upstreams=states(False, False))
    one.settings = replace(one.settings, router_gate=False)
    assert make.condition(one.plan(), "Ready")[0] == "True"


def test_a_missing_secret_is_told_first(world: Any, make: Any) -> None:
    key = {"key": {"secretRef": {"name": "s", "key": "k"}}}
    spec = {"model": {}, "external": {"urls": [{"url": URLS[0], **key}]}}
    one = world(spec).see(upstreams=states(BAD, BAD)[:1])
    assert make.condition(one.plan(), "Ready")[1] == "SecretMissing"
    one.see(secrets={"s": "1"}, upstreams=states(True, True)[:1])
    assert make.condition(one.plan(), "Ready")[0] == "True"


def test_a_name_of_another_is_told(world: Any, make: Any) -> None:
    one = world(SPEC).see(upstreams=states(True, True), names_lost={"hosted": "n/other"})
    assert make.condition(one.plan(), "Ready")[1] == "NameConflict"


@pytest.mark.parametrize("spec", [SPEC, {"model": {"uri": "builtin://kvasir-tiny"}}])
def test_an_unknown_fallback_is_a_condition_and_no_hindrance(
    world: Any, make: Any, spec: dict[str, Any]
) -> None:
    one = world({**spec, "fallbacks": ["a", "b"]})
    one.see(upstreams=states(True, True), unknown_fallbacks=("b",))
    before = make.condition(world(spec).see(upstreams=states(True, True)).plan(), "Ready")
    made = one.plan()
    status, reason, message = make.condition(made, "Degraded")
    assert (status, reason) == ("True", "UnknownFallback")
    assert "'b'" in message
    assert message.startswith("No LLMDeployment serves 'b' of spec.fallbacks")
    assert make.condition(made, "Ready") == before
    assert made.requeue is not None
