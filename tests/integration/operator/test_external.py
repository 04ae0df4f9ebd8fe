"""Models that servers of others serve, and fallbacks, with a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.kube.objects import condition
from kvasir.resource import labels
from kvasir_operator.kinds import DEPLOYMENTS, JOBS, MODEL_NAMES, PODS, SECRETS

pytestmark = pytest.mark.slow

URL = "https://a.example/v1"


async def external(site: Any, name: str = "m", *, key: str = "", **more: Any) -> str:
    """Apply a model of one URL; return the name that routers have for the URL."""
    secret = {"key": {"secretRef": {"name": key, "key": "k"}}} if key else {}
    urls = [{"url": URL, **secret}]
    model = {"name": f"{site.namespace}-{name}"}
    made = await site.apply(name, model=model, external={"urls": urls, **more})
    return f"{made['metadata']['uid']}/url-0"


async def test_nothing_is_made_and_the_routers_word_is_the_status(site: Any, start: Any) -> None:
    start()
    run = await external(site)
    await site.until("Ready", "False", "Waiting")
    site.router.problems = {run: "its certificate is not trusted: self-signed"}
    await site.until("Ready", "False", "UpstreamUnreachable")
    told = condition(await site.get(), "WorkloadReady")["message"]
    assert f"{URL}: its certificate is not trusted: self-signed." in told
    site.router.problems, site.router.others = {}, {run}
    await site.until("Ready", "True", "Serving")
    status = (await site.get())["status"]
    assert (status["phase"], status["replicas"], status["readyReplicas"]) == ("Ready", 1, 1)
    for kind in (DEPLOYMENTS, JOBS):
        assert await site.cluster.list(kind, site.namespace) == []
    claims = await site.cluster.list(MODEL_NAMES)
    assert f"{site.namespace}-m" in {each["spec"]["name"] for each in claims}


async def test_a_missing_secret_and_a_taken_name_are_told(site: Any, start: Any) -> None:
    start()
    await external(site, key="s")
    await site.until("Accepted", "False", "SecretMissing")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": site.namespace},
        "stringData": {"k": "x"},
    }
    await site.cluster.apply(SECRETS, secret, "test")
    await site.until("Accepted", "True")
    await site.apply("other", model={"uri": "builtin://kvasir-tiny", "name": f"{site.namespace}-m"})
    await site.until("Accepted", "False", "NameConflict", name="other")


async def test_pods_of_others_are_replicas(site: Any, start: Any) -> None:
    start()
    model = {"name": f"{site.namespace}-m"}
    await site.apply(model=model, external={"pods": {"matchLabels": {"app": "x"}}})
    await site.until("Ready", "False", "Waiting")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": site.namespace, "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "x:1"}]},
    }
    made = await site.cluster.apply(PODS, pod, "test")
    container = {"name": "c", "image": "x:1", "imageID": "", "ready": True, "restartCount": 2}
    status = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [container]}
    await site.cluster.merge_status(PODS, site.namespace, "p", status)
    site.router.others = {f"{made['metadata']['uid']}/2"}
    await site.until("Ready", "True", "Serving")


async def test_a_fallback_may_be_a_model_of_kserves_pods(site: Any, start: Any) -> None:
    start("--kserve-namespace", "elsewhere", "--kserve-namespace", site.namespace)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": site.namespace,
            "labels": {labels.KSERVE_SERVICE: "iris"},
        },
        "spec": {"containers": [{"name": "kserve-container", "image": "x:1"}]},
    }
    await site.cluster.apply(PODS, pod, "test")
    await site.apply(fallbacks=["iris", f"{site.namespace}/none"])
    await site.until("Degraded", "True", "UnknownFallback")
    told = condition(await site.get(), "Degraded")["message"]
    nobody = f"No LLMDeployment and no pod of KServe serves '{site.namespace}/none' of"
    assert told.startswith(nobody)
    await site.apply(fallbacks=["iris"])
    await site.until("Degraded", "False")


async def test_an_unknown_fallback_is_a_condition_until_somebody_serves_it(
    site: Any, start: Any
) -> None:
    start()
    fallback = f"{site.namespace}-later"
    await site.apply(fallbacks=[fallback])
    await site.until("Degraded", "True", "UnknownFallback")
    await site.until("Ready", "True")
    await external(site, "later")
    await site.until("Degraded", "False")
