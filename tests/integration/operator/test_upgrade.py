"""The upgrade of a release without claims and classes: routers know every model all the time."""

from __future__ import annotations

from typing import Any

import pytest
from support.operators.new_router import NewRouter

from kvasir.resource import labels
from kvasir_operator.kinds import LLMDEPLOYMENTS, MODEL_NAMES
from kvasir_operator.objects import status_manifest

COUNT = 12


async def judge(site: Any, resource: Any) -> None:
    """The status that an operator without claims and classes has left."""
    accepted = {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"observedGeneration": 1, "conditions": [accepted]}
    body = status_manifest(resource, status)
    await site.cluster.apply(LLMDEPLOYMENTS, body, labels.MANAGER, "status")


@pytest.mark.slow
async def test_routers_know_every_model_before_and_while_the_operator_claims(
    site: Any, plane: Any, start: Any
) -> None:
    wanted = set()
    for number in range(COUNT):
        model = {"uri": "builtin://kvasir-tiny", "name": f"Org/{number}", "aliases": [f"a{number}"]}
        wanted |= {f"Org/{number}", f"a{number}"}
        await judge(site, await site.apply(f"m{number}", model=model, replicas=0))
    routers = [NewRouter(plane, site.namespace, site.namespace)]
    await site.eventually(routers[0].knows, "a first state")
    assert routers[0].states == [wanted]

    operator = start()
    taken: list[Any] = []

    async def all_taken() -> bool:
        # One router more each time: some begin in the middle of it
        routers.append(NewRouter(plane, site.namespace, site.namespace))
        found = await site.cluster.list(LLMDEPLOYMENTS, site.namespace)
        taken[:] = [it for it in found if it["status"].get("className") == site.namespace]
        return len(taken) == COUNT

    await site.eventually(all_taken, "a class on each")
    claims = await site.cluster.list(MODEL_NAMES, selector=f"{labels.CLASS}={site.namespace}")
    assert {it["spec"]["name"] for it in claims} == wanted
    for each in routers:
        await site.eventually(each.knows, "a first state of each")
    assert len(routers) > 2
    # What is claimed is served because of its claim, and goes with it
    operator.kill()
    await site.cluster.delete(MODEL_NAMES, "", claims[0]["metadata"]["name"])
    gone = claims[0]["spec"]["name"]

    async def all_without_it() -> bool:
        return all(each.states[-1] == wanted - {gone} for each in routers)

    await site.eventually(all_without_it, "a name that is nobody's")
    assert all(state == wanted for each in routers for state in each.states[:-1])
    for each in routers:
        await each.stop()
