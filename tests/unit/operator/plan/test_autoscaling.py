"""Autoscalers: made, exchanged, taken away, and what all of that does to replicas: nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kvasir_operator.plan.observed import ScalingProblem

SCALED = {
    "model": {"uri": "builtin://kvasir-tiny", "name": "org/chat"},
    "replicas": 4,
    "autoscaling": {"minReplicas": 1, "maxReplicas": 8, "target": 10},
}
KEDA = frozenset({"scaledobjects"})


def kinds(objects: Any) -> set[str]:
    return {each["kind"] for each in objects} & {"ScaledObject", "HorizontalPodAutoscaler"}


HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"


def scaled(make: Any, controller: str, **more: Any) -> dict[str, Any]:
    return make.merged(SCALED, {"autoscaling": {"controller": controller, **more}})  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("optional", "controller", "made", "gone"),
    [
        ((), "kvasir", set(), {HPA}),
        ((), "hpa", {HPA}, set()),
        ((), "keda", set(), {HPA}),
        ((), None, set(), {HPA}),
        (KEDA, "kvasir", set(), {SCALED_OBJECT, HPA}),
        (KEDA, "hpa", {HPA}, {SCALED_OBJECT}),
        (KEDA, "keda", {SCALED_OBJECT}, {HPA}),
        (KEDA, None, set(), {SCALED_OBJECT, HPA}),
    ],
)
def test_the_controller_is_the_only_one(
    world: Any, make: Any, optional: Any, controller: str | None, made: set[str], gone: set[str]
) -> None:
    plain = {key: SCALED[key] for key in ("model", "replicas")}
    spec = scaled(make, controller) if controller else plain
    plan = world(spec).see(optional=frozenset(optional)).plan()
    assert kinds(plan.manifests) == made
    assert kinds(plan.deletions) == gone
    assert make.manifest(plan, "Deployment")["spec"]["replicas"] == 4


def test_without_the_right_to_make_autoscalers(world: Any, make: Any) -> None:
    settings = replace(make.SETTINGS, optional_kinds=("scaledobjects",))
    plan = world(scaled(make, "hpa"), settings).plan()
    assert kinds(plan.manifests) == kinds(plan.deletions) == set()
    status, _, message = make.condition(plan, "ScalingActive")
    assert status == "False"
    assert "operator.optionalKinds" in message


@pytest.mark.parametrize(
    ("seen", "status", "reason", "words"),
    [
        (None, "Unknown", "MetricsMissing", "has not looked at the load yet"),
        (ScalingProblem(), "True", "AsExpected", ""),
        (
            ScalingProblem("no router is Ready"),
            "False",
            "MetricsMissing",
            "replicas stay at 4: no router is Ready.",
        ),
        (
            ScalingProblem("x scales it", "HorizontalPodAutoscaler x"),
            "False",
            "ScaledByAnother",
            "HorizontalPodAutoscaler x scales this, too, so the operator does not; delete it",
        ),
    ],
)
def test_whether_the_operator_scales_is_told(
    world: Any, make: Any, seen: Any, status: str, reason: str, words: str
) -> None:
    found = make.condition(world(SCALED).see(scaling=seen).plan(), "ScalingActive")
    assert found[:2] == (status, reason)
    assert words in found[2]


def test_an_autoscaler_scales_the_resource_by_its_own_metric(world: Any, make: Any) -> None:
    spec = make.manifest(world(scaled(make, "hpa")).plan(), HPA)["spec"]
    assert spec["scaleTargetRef"]["kind"] == "LLMDeployment"
    (metric,) = spec["metrics"]
    assert metric["external"]["metric"] == {
        "name": "kvasir_concurrency",
        "selector": {"matchLabels": {"deployment": "m"}},
    }
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "10"}


@pytest.mark.parametrize(
    ("metric", "how"), [("concurrency", "sum"), ("queue", "sum"), ("in_flight_tokens", "max")]
)
def test_keda_counts_what_every_router_knows_once(
    world: Any, make: Any, metric: str, how: str
) -> None:
    one = world(scaled(make, "keda", metric=metric))
    spec = make.manifest(one.see(optional=KEDA).plan(), "ScaledObject")["spec"]
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["valueLocation"] == metric
    assert trigger["metadata"]["aggregationType"] == how


def test_keda_asks_all_routers(world: Any, make: Any) -> None:
    model = {"uri": "builtin://kvasir-tiny", "name": "org/chat", "aliases": ["old"]}
    one = world({**scaled(make, "keda"), "model": model}).see(optional=KEDA)
    spec = make.manifest(one.plan(), "ScaledObject")["spec"]
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["url"] == (
        "http://kvasir-router-admin.kvasir.svc:8081/scaling/org/chat"
    )
    assert trigger["metadata"]["aggregateFromKubeServiceEndpoints"] == "true"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 8)


def said(kind: str, status: str, message: str = "") -> dict[str, Any]:
    condition = {"type": kind, "status": status, "message": message}
    return {"metadata": {"name": "m"}, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("port", "optional", "live", "status", "words"),
    [
        (0, (), None, "False", "The operator serves no metrics to autoscalers"),
        (0, (), said("ScalingActive", "False", "none"), "False", "externalMetrics.enabled=true"),
        # Somebody else serves them
        (0, (), said("ScalingActive", "True"), "True", ""),
        (8443, (), None, "Unknown", "has not said yet"),
        (
            8443,
            (),
            said("ScalingActive", "False", "no metric."),
            "False",
            "cannot work: no metric.",
        ),
        (8443, (), said("ScalingActive", "True"), "True", ""),
        (0, KEDA, None, "Unknown", "has not said yet"),
        (0, KEDA, said("Ready", "False", "no trigger."), "False", "cannot work: no trigger."),
        (0, KEDA, said("Ready", "True"), "True", ""),
    ],
)
def test_whether_it_works_is_told(
    world: Any, make: Any, port: int, optional: Any, live: Any, status: str, words: str
) -> None:
    settings = replace(make.SETTINGS, external_metrics_port=port)
    spec = scaled(make, "keda" if optional else "hpa")
    one = world(spec, settings).see(optional=frozenset(optional), autoscaler=live)
    one.step()
    one.pods(*(make.pod(name, one.revision, up=True, routed=True) for name in "abcd"))
    made = one.step()
    found = make.condition(made, "ScalingActive")
    assert found[0] == status
    assert words in found[2]
    # It serves all the same
    assert make.condition(made, "Ready")[0] == "True"
    assert make.condition(made, "Degraded")[0] == str(status == "False")


def test_without_an_autoscaler_there_is_nothing_to_tell(world: Any) -> None:
    made = world({"model": SCALED["model"]}).plan()
    assert "ScalingActive" not in [each["type"] for each in made.status["conditions"]]


NIGHT = {"start": "0 22 * * *", "end": "0 6 * * *", "minReplicas": 3, "name": "night"}


def test_schedules_are_told_and_looked_at_again_when_they_change(world: Any, make: Any) -> None:
    one = world(scaled(make, "kvasir", schedules=[NIGHT])).see(
        scaling=ScalingProblem(), now=datetime(2026, 7, 1, 23, tzinfo=UTC)
    )
    made = one.plan()
    assert made.status["scaling"] == {
        "minReplicas": 3,
        "maxReplicas": 8,
        "activeSchedules": ["night"],
        "nextChange": "2026-07-02T06:00:00Z",
    }
    assert made.requeue is not None
    assert made.requeue <= 7 * 3600
    later = one.see(now=datetime(2026, 7, 2, 6, tzinfo=UTC)).plan().status["scaling"]
    assert (later["minReplicas"], later["activeSchedules"]) == (1, [])
    assert later["nextChange"] == "2026-07-02T22:00:00Z"


def test_without_schedules_no_bounds_are_told(world: Any) -> None:
    assert "scaling" not in world(SCALED).plan().status
