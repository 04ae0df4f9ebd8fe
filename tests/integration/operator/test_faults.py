"""What is thrown at the operator: a bad image, a second operator, an API server that goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvasir.resource.crd_writer import as_yaml
from kvasir_operator.kinds import DEPLOYMENTS, LEASES, LLMDEPLOYMENTS

BAD_IMAGE = "nowhere/none:1"
LEASE_SECONDS = "10"
"""Long enough that a busy machine does not keep a leader from renewing it."""


def image_is_missing(pod: dict[str, Any]) -> dict[str, Any] | None:
    """A fate: pods of the bad image do not start."""
    if pod["spec"]["containers"][0]["image"] != BAD_IMAGE:
        return None
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    engine = {
        "name": "engine",
        "image": BAD_IMAGE,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    return {"phase": "Pending", "containerStatuses": [engine]}


async def ready_pods(site: Any) -> int:
    return int((await site.get(DEPLOYMENTS)).get("status", {}).get("readyReplicas", 0))


async def test_a_bad_image_and_the_way_back(site: Any, start: Any) -> None:
    start()
    site.fate = image_is_missing
    await site.apply(replicas=2)
    await site.until("Ready", "True")
    await site.apply(replicas=2, engine={"image": BAD_IMAGE})
    await site.until("Degraded", "True", "ImagePullFailed")
    assert await ready_pods(site) == 2
    assert (await site.get())["status"]["phase"] == "Degraded"
    await site.apply(replicas=2)
    await site.until("Ready", "True")
    assert await ready_pods(site) >= 2


@pytest.mark.slow
async def test_two_at_once(site: Any, start: Any) -> None:
    first = start("--lease-seconds", LEASE_SECONDS)

    async def leads() -> bool:
        return bool(first.is_leading())

    await site.eventually(leads, "a leader")
    second = start("--lease-seconds", LEASE_SECONDS)
    await site.apply()
    await site.until("Ready", "True")
    assert not second.is_leading()
    first.kill()

    async def takes_over() -> bool:
        return bool(second.is_leading())

    await site.eventually(takes_over, "another leader")
    await site.apply(replicas=3)
    await site.until("Ready", "True")
    assert second.stop() == 0
    lease = await site.cluster.get(LEASES, "kvasir-test", site.namespace)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""
    assert lease["spec"]["leaseTransitions"] == 1


async def test_the_lease_taken_away_ends_the_process(site: Any, start: Any) -> None:
    operator = start()
    await site.apply()
    await site.until("Ready", "True")
    await site.cluster.merge(
        LEASES,
        "kvasir-test",
        site.namespace,
        {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}},
    )

    async def ended() -> bool:
        return operator.process.poll() is not None

    await site.eventually(ended, "the end of the process")
    assert operator.process.returncode == 1
    assert "another operator has taken the Lease" in operator.log


@pytest.mark.slow
async def test_an_api_server_that_comes_back(site: Any, start: Any, plane: Any) -> None:
    # Far longer than an API server takes to start, and to know its roles again
    operator = start("--lease-seconds", "120")
    await site.apply()
    await site.until("Ready", "True")
    plane.restart_apiserver()
    await site.edit(LLMDEPLOYMENTS, "m", {"spec": {"replicas": 2}})
    await site.until("Ready", "True")
    assert operator.process.poll() is None
    plane.stop_apiserver()
    await asyncio.sleep(3)
    plane.start_apiserver()
    await site.edit(LLMDEPLOYMENTS, "m", {"spec": {"replicas": 3}})
    await site.until("Ready", "True")
    assert operator.process.poll() is None


@pytest.mark.slow
async def test_a_definition_that_goes_and_comes_back(site: Any, start: Any, plane: Any) -> None:
    """With it went all LLMDeployments. The process ends with a sentence, and is started again as a
    kubelet would: what the new definition has is served."""
    operator = start()
    await site.apply()
    await site.until("Ready", "True")
    plane.undefine("llmdeployments.kvasir.dev")

    async def ended() -> bool:
        return operator.process.poll() is not None

    await site.eventually(ended, "the end of the process")
    plane.define(as_yaml())
    assert operator.process.returncode == 1
    assert operator.log.splitlines()[-1].startswith("kvasir operator: a watch ended: ")
    operator.start()
    await site.apply(replicas=2)
    await site.until("Ready", "True")
    assert await ready_pods(site) == 2
