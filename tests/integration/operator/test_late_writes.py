"""A write that left an operator before it lost the Lease, and comes when the next one works.

What no client can prevent: the network has it. The API server refuses it, since the object has
changed; where it cannot, the next operator puts things right.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from operator_freezes import Gateway
from support.operators.operator_site import ACCOUNT, Operator

from harness.streams import serving
from kvasir.cli.local.ports import free_ports
from kvasir.resource import labels
from kvasir.resource.ownership.name_claims import claim_object_name
from kvasir_operator.kinds import DEPLOYMENTS, LLMDEPLOYMENTS, MODEL_NAMES, NETWORK_POLICIES, PODS

pytestmark = pytest.mark.slow

LEASE_SECONDS = "10"
API = "/apis/kvasir.dev/v1alpha1"
TINY = {"uri": "builtin://kvasir-tiny"}


@pytest.fixture
async def gateway(plane: Any) -> AsyncIterator[Any]:
    """The first operator's way to the API server."""
    made: Any = Gateway(plane, "first", [])
    async with serving(made.serve) as made.port:
        yield made


@pytest.fixture
def first(plane: Any, site: Any, gateway: Any, tmp_path: Path) -> Any:
    """An operator behind the gateway."""
    config = json.loads(plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{gateway.port}"}
    config["users"][0]["user"] = {"token": plane.token_for(ACCOUNT)}
    path = tmp_path / "first.kubeconfig"
    path.write_text(json.dumps(config))
    made = Operator(path, tmp_path / "first.log", free_ports(1)[0], *flags(site))
    made.start()
    yield made
    made.kill()
    print(made.log)


def flags(site: Any) -> tuple[str, ...]:
    return (
        *("--watch-namespace", site.namespace, "--router-namespace", site.namespace),
        *("--router-admin-port", str(site.router.port), "--lease-name", site.namespace),
        *("--class-name", site.namespace, "--lease-seconds", LEASE_SECONDS),
    )


@pytest.fixture
def succeed(site: Any, gateway: Any, first: Any, start: Any) -> Callable[..., Awaitable[None]]:
    """succeed(request, edit, between): the first operator writes `request` because of `edit`, the
    network holds it, and another operator takes over; `between` edits while there is none."""

    async def change(
        request: str,
        edit: Callable[[], Awaitable[Any]],
        between: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        gateway.holds = request

        async def is_held() -> bool:
            return bool(gateway.held)

        await edit()
        await site.eventually(is_held, f"{request} on its way")
        first.kill()
        if between is not None:
            await between()
        second = start()

        async def leads() -> bool:
            return bool(second.is_leading())

        await site.eventually(leads, "another leader")

    return change


async def test_a_late_scale_down_ends_no_engine(site: Any, gateway: Any, succeed: Any) -> None:
    await site.apply(replicas=3)
    await site.until("Ready", "True")
    request = f"PATCH /apis/apps/v1/namespaces/{site.namespace}/deployments/m?"
    await succeed(request, lambda: site.apply(replicas=1))
    await site.apply(replicas=3, lifecycle={"drainSeconds": 77})
    await site.until("Ready", "True")
    before = await site.get(DEPLOYMENTS)
    assert before["spec"]["replicas"] == 3
    assert await gateway.deliver() == 409
    assert (await site.get(DEPLOYMENTS))["metadata"]["generation"] == before["metadata"][
        "generation"
    ]


async def test_a_late_status_says_nothing(site: Any, gateway: Any, succeed: Any) -> None:
    await site.apply(replicas=0)
    await site.until("WorkloadReady", "True", "ScaledToZero")
    request = f"PATCH {API}/namespaces/{site.namespace}/llmdeployments/m/status?"
    await succeed(request, lambda: site.apply(replicas=0, paused=True))
    await site.apply(replicas=0, paused=False)
    await site.until("Accepted", "True", "Accepted")
    before = await site.get()
    assert await gateway.deliver() == 409
    assert (await site.get())["metadata"]["resourceVersion"] == before["metadata"][
        "resourceVersion"
    ]


async def test_a_late_replacement_lets_nobody_in(site: Any, gateway: Any, succeed: Any) -> None:
    """Of a NetworkPolicy, whose spec is replaced whole when somebody has added to it."""
    await site.apply(replicas=0)
    await site.until("WorkloadReady", "True", "ScaledToZero")
    [policy] = [
        it["metadata"]["name"]
        for it in await site.cluster.list(NETWORK_POLICIES, site.namespace)
        if it["metadata"]["labels"].get(labels.DEPLOYMENT) == "m"
        and it["spec"]["podSelector"]["matchLabels"].get(labels.COMPONENT) == labels.ENGINE
    ]
    request = (
        f"PATCH /apis/networking.k8s.io/v1/namespaces/{site.namespace}/networkpolicies/{policy}?"
    )
    added = {"spec": {"ingress": [{}]}}
    await succeed(request, lambda: site.edit(NETWORK_POLICIES, policy, added))
    closed = {"allowedNamespaces": ["friends"]}
    await site.apply(replicas=0, networkPolicy=closed)

    async def lets_friends_in() -> bool:
        live = await site.get(NETWORK_POLICIES, policy)
        return "friends" in json.dumps(live["spec"])

    await site.eventually(lets_friends_in, "the policy of the next operator")
    assert await gateway.deliver() == 409
    assert await lets_friends_in()


async def test_a_late_gate_opens_nothing(site: Any, gateway: Any, succeed: Any) -> None:
    await site.apply()
    pods: list[Any] = []

    async def made() -> bool:
        pods[:] = await site.cluster.list(PODS, site.namespace, f"{labels.COMPONENT}=engine")
        return bool(pods)

    site.takes_pods = False
    await site.eventually(made, "a pod")
    name = pods[0]["metadata"]["name"]

    async def take() -> None:
        site.takes_pods = True

    await succeed(f"PATCH /api/v1/namespaces/{site.namespace}/pods/{name}/status", take)
    await site.until("Ready", "True")
    assert await gateway.deliver() == 409


async def test_a_late_release_is_made_good(site: Any, gateway: Any, succeed: Any) -> None:
    """A claim that is wanted again is the same object: the name is claimed anew at once."""

    async def also() -> None:
        await site.apply(replicas=0, model={**TINY, "aliases": ["also"]})

    await also()
    await site.until("WorkloadReady", "True", "ScaledToZero")
    name = claim_object_name(site.namespace, "also")
    claim = await site.cluster.get(MODEL_NAMES, None, name)
    # Wanted again before the next operator looks: it would release the name itself
    await succeed(f"DELETE {API}/modelnames/{name}", lambda: site.apply(replicas=0), also)
    assert await gateway.deliver() == 200

    async def claimed_again() -> bool:
        live = await site.cluster.get(MODEL_NAMES, None, name)
        return live is not None and live["metadata"]["uid"] != claim["metadata"]["uid"]

    await site.eventually(claimed_again, "the name claimed anew")


async def test_a_late_claim_is_released(site: Any, gateway: Any, succeed: Any) -> None:
    await site.apply(replicas=0)
    await site.until("WorkloadReady", "True", "ScaledToZero")
    request = f"POST {API}/modelnames?"
    await succeed(request, lambda: site.apply(replicas=0, model={**TINY, "aliases": ["also"]}))
    await site.apply(replicas=0, model=TINY)
    await site.until("WorkloadReady", "True", "ScaledToZero")
    name = claim_object_name(site.namespace, "also")

    async def is_free() -> bool:
        return await site.cluster.get(MODEL_NAMES, None, name) is None

    await site.eventually(is_free, "no claim")
    assert await gateway.deliver() == 201
    await site.eventually(is_free, "the claim released")
    assert await site.cluster.get(LLMDEPLOYMENTS, site.namespace, "m")
