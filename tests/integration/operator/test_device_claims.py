"""GPUs by dynamic resource allocation, as a real API server takes them."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir_operator.kinds import PODS, RESOURCE_CLAIM_TEMPLATES

pytestmark = pytest.mark.slow

ENGINES = "kvasir.dev/component=engine"


async def templates(site: Any) -> list[dict[str, Any]]:
    found = await site.cluster.list(RESOURCE_CLAIM_TEMPLATES, site.namespace)
    return sorted(found, key=lambda it: it["metadata"]["creationTimestamp"])


async def test_pods_claim_devices_of_a_class(site: Any, start: Any, plane: Any) -> None:
    operator = start()
    claim = {"deviceClassName": "gpu.example.com", "count": 2}
    await site.apply(resources={"gpuClaim": claim}, parallelism={"tensor": 2})
    if "resource.k8s.io/v1" not in plane.kubectl("api-versions").split():
        # Kubernetes has it since 1.34, and the oldest one that this runs on is older.
        await site.until("Ready", "False", "ClaimsUnavailable")
        assert not await site.cluster.list(PODS, site.namespace, ENGINES)
        return
    await site.until("Ready", "True")
    (made,) = await templates(site)
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpu.example.com"
    assert request["exactly"]["count"] == 2
    (pod,) = await site.cluster.list(PODS, site.namespace, selector=ENGINES)
    name = made["metadata"]["name"]
    assert pod["spec"]["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": name}]
    assert (await site.get())["status"]["gpus"] == "2 gpu.example.com"

    async def looked() -> bool:
        return bool(operator.metric("kvasir_operator_reconciles_total") >= goal)

    writes = operator.metric("kvasir_operator_api_writes_total")
    goal = operator.metric("kvasir_operator_reconciles_total") + 3
    await site.eventually(looked, "more looks")
    assert operator.metric("kvasir_operator_api_writes_total") == writes

    # A template's content cannot change: there is another one for another revision
    await site.apply(
        resources={"gpuClaim": {**claim, "count": 4}}, parallelism={"tensor": 4}, replicas=1
    )

    async def another() -> bool:
        return len(await templates(site)) == 2

    await site.eventually(another, "the second template")
    await site.until("Ready", "True")
