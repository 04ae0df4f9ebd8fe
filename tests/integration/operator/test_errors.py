"""What an API server refuses again and again is told in the status, in its own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.operators.operator_site import ACCOUNT

from harness.errors import HarnessError
from kvasir.kube.objects import condition
from kvasir_operator.controller.failures import TIMES
from kvasir_operator.kinds import DEPLOYMENTS, LLMDEPLOYMENTS, NETWORK_POLICIES, SERVICES

ADMISSION = "admissionregistration.k8s.io/v1"
BLOCKED = "example.com/blocked"


async def message(site: Any, kind: str = "Degraded") -> str:
    return str(condition(await site.get(), kind).get("message"))


@pytest.fixture
def broken_webhook(site: Any, plane: Any) -> Iterator[str]:
    """A webhook that nobody answers is asked about every Service of the site: status 500."""
    name = f"{site.namespace}.example.com"
    hook = {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["*"],
                "resources": ["services"],
            }
        ],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}},
    }
    kind = "ValidatingWebhookConfiguration"
    body = {"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": name}, "webhooks": [hook]}
    plane.apply(json.dumps(body))
    yield name
    plane.kubectl("delete", "--ignore-not-found", kind, name)


async def test_a_passing_error_that_does_not_pass_is_told(
    site: Any, start: Any, plane: Any, broken_webhook: str
) -> None:
    operator = start()
    await site.apply()
    await site.until("Degraded", "True", "ApplyFailed")
    told = await message(site)
    assert told.startswith("Service m could not be written: ")
    assert "failed calling webhook" in told
    assert await site.condition("Ready") == ("False", "ApplyFailed")
    # What does not need the Service is made in spite of it
    await site.get(DEPLOYMENTS)

    async def counted() -> bool:
        return bool(operator.metric("kvasir_operator_reconciles_total") >= TIMES)

    await site.eventually(counted, "the reconciles that failed")
    plane.kubectl("delete", "ValidatingWebhookConfiguration", broken_webhook)
    await site.until("Ready", "True")
    assert await site.condition("Degraded") == ("False", "AsExpected")


async def test_a_child_that_cannot_go_is_told(site: Any, start: Any) -> None:
    start()
    await site.apply()
    await site.until("Ready", "True")
    await site.edit(SERVICES, "m", {"metadata": {"finalizers": [BLOCKED]}})
    await site.cluster.delete(SERVICES, site.namespace, "m")
    await site.until("Degraded", "True", "DeletionStuck")
    told = await message(site)
    assert told.startswith("Service m is being deleted since ")
    assert f"finalizers {BLOCKED}" in told
    await site.edit(SERVICES, "m", {"metadata": {"finalizers": None}})
    await site.until("Ready", "True")


async def test_an_object_that_shall_go_and_cannot_is_told(site: Any, start: Any) -> None:
    start()
    await site.apply()
    await site.until("Ready", "True")
    await site.edit(NETWORK_POLICIES, "m", {"metadata": {"finalizers": [BLOCKED]}})
    await site.apply(networkPolicy={"enabled": False})
    await site.until("Degraded", "True", "DeletionStuck")
    assert (await message(site)).startswith("NetworkPolicy m is being deleted since ")
    await site.edit(NETWORK_POLICIES, "m", {"metadata": {"finalizers": None}})
    await site.until("Ready", "True")


async def test_a_deployment_that_waits_for_its_children_to_go_says_so(
    site: Any, start: Any
) -> None:
    start()
    await site.apply()
    await site.until("Ready", "True")
    await site.edit(SERVICES, "m", {"metadata": {"finalizers": [BLOCKED]}})
    uid = (await site.get())["metadata"]["uid"]
    await site.cluster._send(
        "DELETE",
        LLMDEPLOYMENTS.path(site.namespace, "m"),
        {},
        {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}},
    )

    async def told() -> bool:
        found = condition(await site.get(), "Degraded")
        return found.get("reason") == "DeletionStuck" and "Service m is" in found["message"]

    await site.eventually(told, "the Service in the way")
    await site.edit(SERVICES, "m", {"metadata": {"finalizers": None}})

    async def gone() -> bool:
        return await site.cluster.get(LLMDEPLOYMENTS, site.namespace, "m") is None

    await site.eventually(gone, "the end")


async def test_what_may_not_be_read_is_told(site: Any, start: Any, plane: Any) -> None:
    role = json.loads(plane.kubectl("get", "clusterroles", "-o", "json"))
    (rights,) = (
        each for each in role["items"] if each["metadata"]["name"].endswith("kvasir-operator")
    )
    for field in ("managedFields", "resourceVersion"):
        rights["metadata"].pop(field, None)
    fewer = json.loads(json.dumps(rights))
    for rule in fewer["rules"]:
        if "persistentvolumeclaims" in rule["resources"]:
            rule["verbs"].remove("get")
    operator = start()
    await site.apply()
    await site.until("Ready", "True")
    before = (await site.get())["status"]["observedGeneration"]
    asked = ("auth", "can-i", "get", "persistentvolumeclaims", "-n", site.namespace)

    async def forbidden() -> bool:
        """An API server takes notice of a role's change in its own time."""
        try:
            plane.kubectl(*asked, f"--as=system:serviceaccount:{ACCOUNT.replace('/', ':')}")
        except HarnessError:
            return True
        return False

    plane.apply(json.dumps(fewer))
    try:
        await site.eventually(forbidden, "the right's end")
        await site.apply(model={"uri": "pvc://mine/m"})

        async def told() -> bool:
            found = condition(await site.get(), "Degraded")
            words = 'persistentvolumeclaims "mine" is forbidden'
            return found.get("reason") == "APIError" and words in str(found)

        await site.eventually(told, "the forbidden claim")
        status = (await site.get())["status"]
        # Nothing of the new generation is planned yet, and nothing says that it is
        assert status["observedGeneration"] == before
        assert await site.condition("Ready") == ("False", "APIError")
        assert operator.metric("kvasir_llmdeployment_ready") == 0
    finally:
        plane.apply(json.dumps(rights))
    await site.until("ModelCached", "False", "ClaimMissing")


async def test_variables_of_the_operators_own_are_the_users_to_change(
    site: Any, start: Any
) -> None:
    mine = {"HOME": "/home/me", "HF_HUB_OFFLINE": "0", "XDG_CACHE_HOME": "/x"}
    mine["TRITON_CACHE_DIR"] = "/t"
    start()
    await site.apply(engine={"env": [{"name": n, "value": v} for n, v in mine.items()]})
    await site.until("Ready", "True")
    (engine,) = await site.engines()
    env = [(each["name"], each.get("value")) for each in engine["spec"]["containers"][0]["env"]]
    assert len(dict(env)) == len(env)
    assert mine.items() <= dict(env).items()
    assert dict(env)["KVASIR_CACHE"] == "/cache"
