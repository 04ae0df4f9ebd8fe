"""The operator's own autoscaler on a real API server, by loads that a router makes up."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.kube.objects import condition
from kvasir_operator.kinds import AUTOSCALERS, DEPLOYMENTS, EVENTS, LLMDEPLOYMENTS

pytestmark = pytest.mark.slow

AT_ONCE = {"scaleDown": {"stabilizationSeconds": 0}}
SCALED = {"minReplicas": 0, "maxReplicas": 3, "target": 10, "behavior": AT_ONCE}


def load(concurrency: int, requests: int = 1) -> dict[str, Any]:
    return {"m": {"model": "m", "concurrency": concurrency, "requests": requests}}


async def replicas(site: Any, count: int) -> None:
    """Wait until the Deployment has so many."""

    async def has() -> bool:
        found = await site.cluster.get(DEPLOYMENTS, site.namespace, "m")
        return found is not None and found["spec"]["replicas"] == count

    await site.eventually(has, f"{count} replicas")


async def test_replicas_follow_the_load_to_none_and_back(site: Any, start: Any) -> None:
    site.router.loads = load(5)
    operator = start()
    await site.apply(autoscaling=SCALED)
    await site.until("ScalingActive", "True", "AsExpected")
    await site.until("Ready", "True")
    site.router.loads = load(45)
    await replicas(site, 3)
    site.router.loads = load(15)
    await replicas(site, 2)
    # No request now and in the last minute, in which it was ready
    site.router.loads = load(0, 0)
    await site.apply(autoscaling={**SCALED, "idleSeconds": 60})
    await replicas(site, 0)
    await site.until("WorkloadReady", "True", "ScaledToZero")
    site.router.loads = load(1)
    await replicas(site, 1)
    await site.until("Ready", "True")
    assert operator.metric("kvasir_operator_api_writes_total") > 0


async def test_an_autoscaler_of_the_users_own_is_left_to_work(site: Any, start: Any) -> None:
    site.router.loads = load(45)
    target = {"apiVersion": LLMDEPLOYMENTS.api_version, "kind": "LLMDeployment", "name": "m"}
    theirs = {
        "apiVersion": AUTOSCALERS.api_version,
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "theirs", "namespace": site.namespace},
        "spec": {"scaleTargetRef": target, "maxReplicas": 2},
    }
    await site.cluster.create(AUTOSCALERS, theirs, "user")
    start()
    await site.apply(autoscaling=SCALED)
    await site.until("ScalingActive", "False", "ScaledByAnother")
    resource = await site.get()
    message = condition(resource, "ScalingActive")["message"]
    assert "HorizontalPodAutoscaler theirs scales this, too" in message
    assert resource["spec"]["replicas"] == 1
    await site.cluster.delete(AUTOSCALERS, site.namespace, "theirs")
    await replicas(site, 3)
    await site.until("ScalingActive", "True", "AsExpected")


async def test_an_hpa_that_we_made_makes_way(site: Any, start: Any) -> None:
    site.router.loads = load(45)
    start()
    await site.apply(autoscaling={"controller": "hpa", "maxReplicas": 3})

    async def made() -> Any:
        return await site.cluster.get(AUTOSCALERS, site.namespace, "m")

    await site.eventually(made, "an HPA")
    await site.apply(autoscaling=SCALED)
    await replicas(site, 3)
    assert await made() is None


async def test_a_router_that_is_silent_scales_nothing(site: Any, start: Any) -> None:
    site.router.loads = load(45)
    await site.start_router("silent", "127.0.0.99")  # where nobody listens
    start()
    await site.apply(autoscaling=SCALED)
    await site.until("ScalingActive", "False", "MetricsMissing")
    resource = await site.get()
    assert "router silent does not answer" in condition(resource, "ScalingActive")["message"]
    assert resource["spec"]["replicas"] == 1


async def test_a_schedule_wakes_a_model_and_is_told(site: Any, start: Any) -> None:
    site.router.loads = load(0, 0)
    start()
    always = {"start": "0 0 * * *", "durationSeconds": 172_800, "minReplicas": 2, "name": "always"}
    await site.apply(replicas=0, autoscaling={**SCALED, "schedules": [always]})
    await replicas(site, 2)
    await site.until("ScalingActive", "True", "AsExpected")
    told = (await site.get())["status"]["scaling"]
    assert told == {"minReplicas": 2, "maxReplicas": 3, "activeSchedules": ["always"]}

    async def events() -> bool:
        found = await site.cluster.list(EVENTS, site.namespace)
        return ("Scaled", "From 0 replicas to 2: minReplicas is 2.") in {
            (each["reason"], each["message"]) for each in found
        }

    await site.eventually(events, "an event about it")


async def test_a_schedule_that_only_the_operator_can_refuse_is_told(site: Any, start: Any) -> None:
    start()
    never = {"start": "0 8 30 2 *", "durationSeconds": 60, "minReplicas": 2}
    await site.apply(autoscaling={**SCALED, "schedules": [never]})
    await site.until("Accepted", "False", "InvalidSpec")
    message = condition(await site.get(), "Accepted")["message"]
    assert "schedules[0].start" in message
    assert "Bad day-of-month" in message
