"""Readiness gates, each for itself: a pod that cannot be written and a router that hangs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from kvasir.kube.objects import annotation, condition
from kvasir.resource import labels
from kvasir_operator.kinds import PODS
from kvasir_operator.load_protection import ANNOTATIONS

ADMISSION = "admissionregistration.k8s.io/v1"
BROKEN = {"podTemplate": {"labels": {"broken": "yes"}}}


@pytest.fixture
def broken_pods(site: Any, plane: Any) -> Iterator[None]:
    """The operator may not write the status of pods with the label broken=yes."""
    name = site.namespace
    rules = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/status"]}
    theirs = "request.userInfo.username.endsWith(':kvasir-operator')"
    labelled = "has(object.metadata.labels) && 'broken' in object.metadata.labels"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{**rules, "operations": ["UPDATE"]}]},
        "validations": [{"expression": f"!({theirs} && {labelled})", "message": "not this pod"}],
    }
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": where}
    kinds = {"ValidatingAdmissionPolicy": spec, "ValidatingAdmissionPolicyBinding": binding}
    for kind, body in kinds.items():
        made = {"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": body}
        plane.apply(json.dumps(made))
    yield
    for kind in kinds:
        plane.kubectl("delete", kind, name)


async def test_a_pod_that_cannot_be_written_delays_no_other(
    site: Any, start: Any, broken_pods: None
) -> None:
    operator = start()
    for number in range(3):
        await site.apply(f"a{number}", **BROKEN)

    async def refused() -> bool:
        return "not this pod" in operator.log

    await site.eventually(refused, "a refusal")
    for number in range(3):
        await site.apply(f"b{number}")
    for number in range(3):
        await site.until("Ready", "True", name=f"b{number}")
        await site.until("RouterReady", "False", "NotRouted", name=f"a{number}")


async def test_a_pod_says_which_run_its_gate_is_about(site: Any, start: Any) -> None:
    start()
    await site.apply()
    await site.until("Ready", "True")
    (pod,) = await site.engines()
    gate = condition(pod, labels.ROUTED)
    assert gate["message"] == "Every Ready router serves this engine."
    assert annotation(pod, labels.ROUTED_RUN) == f"{pod['metadata']['uid']}/0"


@pytest.mark.slow
async def test_a_router_that_hangs_is_not_waited_for_and_named(site: Any, start: Any) -> None:
    with socket.create_server(("127.0.0.9", site.router.port)):
        await site.start_router("hanging", "127.0.0.9")
        operator = start()
        await site.apply()
        await site.until("RouterReady", "False", "NotRouted")
        await site.until("Ready", "True")
        assert operator.metric("kvasir_operator_silent_routers") == 1
        # The one that answers has to serve it nevertheless
        site.takes_pods = False
        await site.apply(engine={"args": ["--no-overlap"]})

        async def named() -> bool:
            told = condition(await site.get(), "RouterReady")
            return told.get("reason") == "NotRouted" and "(hanging)" in str(told.get("message"))

        await site.eventually(named, "the name of the router that hangs")
        site.takes_pods = True
        await site.until("Ready", "True")
        await site.cluster.delete(PODS, site.namespace, "hanging")

        async def nobody_is_silent() -> bool:
            return bool(operator.metric("kvasir_operator_silent_routers") == 0)

        await site.eventually(nobody_is_silent, "no router that is silent")


async def test_without_routers_new_engines_wait_unless_nobody_shall_be_asked(
    site: Any, start: Any
) -> None:
    await site.cluster.delete(PODS, site.namespace, "router")
    operator = start()
    await site.apply()
    await site.until("RouterReady", "Unknown", "NoRouter")
    assert "--no-router-gate" in str(condition(await site.get(), "RouterReady"))
    assert (await site.condition("Ready"))[0] == "False"
    assert operator.stop() == 0
    start("--no-router-gate")
    await site.until("Ready", "True")
    assert await site.condition("RouterReady") == ("True", "NotNeeded")
    await site.apply(replicas=2)
    await site.until("Ready", "True")
    assert not any(pod["spec"].get("readinessGates") for pod in await site.engines())


async def test_node_autoscalers_leave_pods_alone_until_they_serve(site: Any, start: Any) -> None:
    start()
    site.takes_pods = False
    await site.apply()
    await site.until("RouterReady", "False", "NotRouted")
    (before,) = await site.engines()
    assert {name: annotation(before, name) for name in ANNOTATIONS} == ANNOTATIONS
    site.takes_pods = True
    await site.until("Ready", "True")

    async def freed() -> bool:
        (now,) = await site.engines()
        assert now["metadata"]["uid"] == before["metadata"]["uid"], "it is the same pod"
        return not any(annotation(now, name) for name in ANNOTATIONS)

    await site.eventually(freed, "the end of the protection")
