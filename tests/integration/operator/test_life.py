"""An LLMDeployment's life on a real control plane: made, healed, scaled, changed, deleted."""

from __future__ import annotations

from typing import Any

import pytest
from support.operators.downloads import own_claim
from support.templates import FULL

from kvasir.kube.objects import condition
from kvasir.resource import labels
from kvasir_operator.kinds import (
    ACCOUNTS,
    AUTOSCALERS,
    BUDGETS,
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    LLMDEPLOYMENTS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
)

pytestmark = pytest.mark.slow

CHILDREN = (DEPLOYMENTS, SERVICES, BUDGETS, NETWORK_POLICIES, ACCOUNTS)
SCALERS = {"replicas": 4}


async def versions(site: Any) -> dict[str, str]:
    """The resourceVersion of everything that the operator makes or writes."""
    found = {}
    for kind in (LLMDEPLOYMENTS, *CHILDREN):
        metadata = (await site.get(kind))["metadata"]
        found[kind.plural] = f"{metadata['uid']} {metadata['resourceVersion']}"
    return found


async def resyncs(site: Any, operator: Any, count: int = 3) -> None:
    """Wait until the operator has looked that many times more."""
    goal = operator.metric("kvasir_operator_reconciles_total") + count

    async def reached() -> bool:
        return bool(operator.metric("kvasir_operator_reconciles_total") >= goal)

    await site.eventually(reached, "more looks")


@pytest.mark.slow
async def test_from_apply_to_deletion(site: Any, start: Any) -> None:
    operator = start()
    site.takes_pods = False
    await site.apply(replicas=2)
    await site.until("WorkloadReady", "True")
    assert await site.condition("RouterReady") == ("False", "NotRouted")
    assert await site.condition("Ready") == ("False", "NotRouted")
    deployment = await site.get(DEPLOYMENTS)
    assert deployment.get("status", {}).get("readyReplicas", 0) == 0

    site.takes_pods = True
    await site.until("Ready", "True")
    resource = await site.get()
    assert resource["status"]["phase"] == "Ready"
    assert resource["status"]["observedGeneration"] == resource["metadata"]["generation"]

    async def counted() -> bool:
        status = (await site.get())["status"]
        return [status["replicas"], status["readyReplicas"], status["updatedReplicas"]] == [2, 2, 2]

    await site.eventually(counted, "counts")
    await steady(site, operator)
    await heals(site)
    await obeys_scale(site)
    await leaves_paused_alone(site, operator)
    assert operator.stop() == 0
    assert '"level": "error"' not in operator.log
    await vanishes(site)


async def steady(site: Any, operator: Any) -> None:
    """Over several looks nothing is written.

    Kubernetes' own controllers write their status when they come to it, so
    what is there is compared once two looks in a row have found the same.
    """

    async def settled() -> bool:
        before = await versions(site)
        await resyncs(site, operator, 1)
        return await versions(site) == before

    await resyncs(site, operator)
    await site.eventually(settled, "the same after a look")
    before = await versions(site)
    writes = operator.metric("kvasir_operator_api_writes_total")
    await resyncs(site, operator)
    assert await versions(site) == before
    assert operator.metric("kvasir_operator_api_writes_total") == writes


async def heals(site: Any) -> None:
    """What others change of ours, or delete, is as it was; what they add stays."""
    uid = (await site.get(SERVICES))["metadata"]["uid"]
    await site.cluster.delete(SERVICES, site.namespace, "m")
    container = {"name": "engine", "image": "evil:1"}
    template = {"spec": {"containers": [container]}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "m",
            "namespace": site.namespace,
            "labels": {"added": "yes", "kvasir.dev/component": "other"},
        },
        "spec": {"replicas": 7, "template": template},
    }
    await site.cluster.apply(DEPLOYMENTS, body, "somebody")
    await site.edit(BUDGETS, "m", {"spec": {"maxUnavailable": 2}})

    async def healed() -> bool:
        service = await site.cluster.get(SERVICES, site.namespace, "m")
        found, kept = await site.get(DEPLOYMENTS), await site.get(BUDGETS)
        (engine,) = found["spec"]["template"]["spec"]["containers"]
        return (
            service is not None
            and service["metadata"]["uid"] != uid
            and found["spec"]["replicas"] == 2
            and engine["image"] == "cpu:1"
            and found["metadata"]["labels"]["added"] == "yes"
            and found["metadata"]["labels"]["kvasir.dev/component"] == "engine"
            and kept["spec"].get("maxUnavailable") == 1
        )

    await site.eventually(healed, "healing")
    await site.until("Ready", "True")


async def obeys_scale(site: Any) -> None:
    """An autoscaler's replicas are kept whoever comes and goes; the operator writes none."""
    await site.edit(LLMDEPLOYMENTS, "m", {"spec": SCALERS})
    await site.until("Ready", "True")
    assert (await site.get(DEPLOYMENTS))["spec"]["replicas"] == 4
    # The user applies his file, in which replicas is not: it stays with the scaler
    await site.apply(lifecycle={"drainSeconds": 50})
    await site.until("Ready", "True")
    resource, deployment = await site.get(), await site.get(DEPLOYMENTS)
    assert (resource["spec"]["replicas"], deployment["spec"]["replicas"]) == (4, 4)
    managers = [
        each["manager"]
        for each in resource["metadata"]["managedFields"]
        if "f:replicas" in each["fieldsV1"].get("f:spec", {})
    ]
    assert managers
    assert "kvasir-operator" not in managers


async def leaves_paused_alone(site: Any, operator: Any) -> None:
    await site.apply(paused=True)
    await site.until("Accepted", "True", "Paused")
    await site.edit(DEPLOYMENTS, "m", {"spec": {"replicas": 3}})
    await site.apply(paused=True, engine={"args": ["--no-overlap"]})
    await resyncs(site, operator)
    assert (await site.get(DEPLOYMENTS))["spec"]["replicas"] == 3
    assert "--no-overlap" not in str(await site.get(DEPLOYMENTS))


async def vanishes(site: Any) -> None:
    """With no operator: nothing of it needs one to go."""
    assert not (await site.get())["metadata"].get("finalizers")
    await site.cluster.delete(LLMDEPLOYMENTS, site.namespace, "m")

    async def gone() -> bool:
        left = [
            it
            for kind in (*CHILDREN, PODS)
            for it in await site.cluster.list(kind, site.namespace, "kvasir.dev/deployment=m")
        ]
        return not left

    await site.eventually(gone, "everything gone")


async def test_parts_that_others_add_to_what_protects_do_not_stay(site: Any, start: Any) -> None:
    """A budget must not have both bounds, and a policy with another selector protects nobody."""
    start()
    await site.apply()
    await site.until("Ready", "True")
    await site.edit(BUDGETS, "m", {"spec": {"maxUnavailable": None, "minAvailable": 1}})
    more = {"matchLabels": {"no": "pod"}}
    await site.edit(NETWORK_POLICIES, "m", {"spec": {"podSelector": more, "egress": [{}]}})

    async def healed() -> bool:
        budget, policy = await site.get(BUDGETS), await site.get(NETWORK_POLICIES)
        return (
            budget["spec"].get("maxUnavailable") == 1
            and "minAvailable" not in budget["spec"]
            and policy["spec"]["podSelector"]["matchLabels"] == labels.identity("m", labels.ENGINE)
            and "egress" not in policy["spec"]
        )

    await site.eventually(healed, "healing")
    await site.until("Ready", "True")
    assert (await site.condition("Degraded"))[0] == "False"


async def test_what_is_there_already_is_not_taken(site: Any, start: Any) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "m", "namespace": site.namespace},
        "spec": {"ports": [{"port": 1}]},
    }
    await site.cluster.apply(SERVICES, theirs, "somebody")
    start()
    await site.apply()
    await site.until("Degraded", "True", "ApplyFailed")
    resource = await site.get()
    assert "Service m was refused: it exists already and is not Kvasir's" in str(resource["status"])
    assert "labels" not in (await site.get(SERVICES))["metadata"]


async def test_two_that_want_one_name(site: Any, start: Any) -> None:
    await site.apply("first", model={"uri": "builtin://kvasir-tiny", "name": "chat"})
    start()
    await site.until("Ready", "True", name="first")
    await site.apply("second", model={"uri": "builtin://kvasir-tiny", "name": "chat"})
    await site.until("Ready", "False", "NameConflict", name="second")
    assert await site.cluster.get(DEPLOYMENTS, site.namespace, "second") is None
    await site.cluster.delete(LLMDEPLOYMENTS, site.namespace, "first")
    await site.until("Ready", "True", name="second")


async def test_a_quota_and_a_bad_field(site: Any, start: Any, plane: Any) -> None:
    plane.kubectl("-n", site.namespace, "create", "quota", "q", "--hard=pods=1")
    start()
    await site.apply(podTemplate={"affinity": {"nodeAffinity": {"nonsense": 1}}})
    await site.until("Degraded", "True", "ApplyFailed")
    await site.apply(podTemplate={})
    await site.until("Ready", "False", "QuotaExceeded")


async def test_a_template_is_merged_and_what_it_gets_wrong_is_told(site: Any, start: Any) -> None:
    operator = start()
    wrong = {"spec": {"containers": [{"name": "engine", "nonsense": 1}]}}
    await site.apply(replicas=0, template=wrong)
    await site.until("Degraded", "True", "ApplyFailed")
    assert "nonsense" in condition(await site.get(), "Degraded")["message"]
    await site.apply(replicas=0, template=FULL)
    await site.until("WorkloadReady", "True", "ScaledToZero")
    pod = (await site.get(DEPLOYMENTS))["spec"]["template"]["spec"]
    engine, proxy = pod["containers"]
    assert engine["args"][0] == "serve"
    assert engine["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"], "drop": ["ALL"]}
    assert {"name": "own", "mountPath": "/own", "readOnly": True} in engine["volumeMounts"]
    assert proxy["image"] == "proxy:1"
    assert pod["serviceAccountName"] == "own"
    await steady(site, operator)


async def test_a_quota_that_refuses_the_download_is_told_until_it_is_met(
    site: Any, start: Any, plane: Any
) -> None:
    hard = "--hard=limits.cpu=4,limits.memory=8Gi"
    plane.kubectl("-n", site.namespace, "create", "quota", "q", hard)
    start()
    await site.apply(model={"uri": "hf://org/model"})
    await site.until("ModelCached", "False", "QuotaExceeded")
    told = str(condition(await site.get(), "ModelCached")["message"])
    assert "must specify limits.cpu for: download" in told
    limits = {"limits": {"cpu": "1", "memory": "1Gi"}}
    await site.apply(model={"uri": "hf://org/model"}, cache={"download": {"resources": limits}})
    await site.eventually(site.finish_downloads, "a download's pod")
    await site.until("ModelCached", "True", "Cached")


async def test_two_that_share_a_claim_and_a_model_download_it_once(site: Any, start: Any) -> None:
    await site.cluster.apply(CLAIMS, own_claim(site.namespace, "shared"), "test")
    start()
    wanted = {"model": {"uri": "hf://org/model"}, "cache": {"pvc": {"claimName": "shared"}}}
    await site.apply("first", **wanted)
    selector = "kvasir.dev/component=download"

    async def runs() -> bool:
        pods = await site.cluster.list(PODS, site.namespace, selector)
        for pod in pods:
            ready = {
                "type": "Ready",
                "status": "True",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            status = {"phase": "Running", "conditions": [ready]}
            await site.cluster.merge_status(PODS, site.namespace, pod["metadata"]["name"], status)
        jobs = await site.cluster.list(JOBS, site.namespace)
        return any((job.get("status") or {}).get("ready") for job in jobs)

    await site.eventually(runs, "a running download")
    await site.apply("second", **wanted)

    async def waits() -> bool:
        told = condition(await site.get(name="second"), "ModelCached").get("message")
        return told == "LLMDeployment first is downloading the same model onto the same claim."

    await site.eventually(waits, "the second to wait")
    assert len(await site.cluster.list(JOBS, site.namespace)) == 1
    await site.eventually(site.finish_downloads, "the end of the first")
    await site.until("ModelCached", "True", "Cached", name="first")

    async def second_is_there() -> bool:
        await site.finish_downloads()
        return await site.condition("ModelCached", "second") == ("True", "Cached")

    await site.eventually(second_is_there, "the second's own look at the volume")


async def test_a_model_is_downloaded_before_engines_start(
    site: Any, start: Any, plane: Any
) -> None:
    start()
    model = {"uri": "hf://org/model", "secretRef": {"name": "hub"}}
    await site.apply(model=model)
    await site.until("Ready", "False", "SecretMissing")
    plane.kubectl(
        "-n", site.namespace, "create", "secret", "generic", "hub", "--from-literal=token=t"
    )
    await site.edit(LLMDEPLOYMENTS, "m", {"metadata": {"annotations": {"touch": "1"}}})

    async def job() -> dict[str, Any] | None:
        return next(iter(await site.cluster.list(JOBS, site.namespace)), None)

    await site.eventually(job, "a Job")
    assert await site.cluster.get(DEPLOYMENTS, site.namespace, "m") is None
    assert await site.cluster.get(CLAIMS, site.namespace, "m-models") is not None
    await site.eventually(site.finish_downloads, "the Job's pod")
    await site.until("Ready", "True")
    deployment = await site.get(DEPLOYMENTS)
    assert "/models/hf-org-model" in str(deployment["spec"]["template"])


async def test_autoscaling_on_and_off_at_four(site: Any, start: Any, plane: Any) -> None:
    """As the guide has it: replicas leaves the file when an autoscaler has it."""
    start()
    await site.apply(replicas=4)
    await site.until("Ready", "True")
    fewest = 4

    async def replicas() -> int:
        return int((await site.get(DEPLOYMENTS))["spec"]["replicas"])

    async def autoscaler() -> bool:
        nonlocal fewest
        fewest = min(fewest, await replicas())
        return await site.cluster.get(AUTOSCALERS, site.namespace, "m") is not None

    async def no_autoscaler() -> bool:
        return not await autoscaler()

    bounds = {"controller": "hpa", "minReplicas": 1, "maxReplicas": 8}
    await site.apply(replicas=4, autoscaling=bounds)
    await site.eventually(autoscaler, "an autoscaler")
    plane.kubectl("-n", site.namespace, "scale", "llmd/m", "--replicas=5")
    await site.apply(autoscaling=bounds)
    await site.until("Ready", "True")
    assert await autoscaler()
    await site.apply()
    await site.eventually(no_autoscaler, "no autoscaler")
    await site.until("Ready", "True")
    assert await replicas() == 5
    assert fewest == 4
