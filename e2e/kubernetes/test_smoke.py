"""Install, apply, chat, delete: what a newcomer does, and that nothing is left of it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.commands import wait_for
from harness.proof.deployment import Deployment
from harness.proof.release import Release

KINDS = (
    *("deployments", "pods", "services", "configmaps", "secrets", "serviceaccounts"),
    *("poddisruptionbudgets", "networkpolicies", "jobs", "persistentvolumeclaims"),
)
CHAT = {
    "model": "smoke",
    "messages": [{"role": "user", "content": "Sort: 7 3 9 1"}],
    "max_tokens": 8,
}


def asking(endpoint: str, key: str | None, **fields: Any) -> urllib.request.Request:
    """The request for a chat, with further fields."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    url = f"{endpoint}/v1/chat/completions"
    return urllib.request.Request(url, json.dumps(CHAT | fields).encode(), headers)


def chat(release: Release, cluster: Cluster, key: str | None) -> list[Any]:
    """The answers through ClusterIP and NodePort."""
    answers = []
    for endpoint in release.endpoints(cluster.nodes[0].address):
        with urllib.request.urlopen(asking(endpoint, key), timeout=60) as answer:
            answers.append(json.load(answer))
    return answers


def first_text(request: urllib.request.Request) -> str:
    """The first piece of a streamed answer."""
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                if delta.get("content"):
                    return str(delta["content"])
    raise AssertionError("the answer had no text")


def volumes(cluster: Cluster) -> set[str]:
    return set(cluster.kubectl("get", "persistentvolumes", "-o", "name").split())


def test_a_model_answers_through_the_router_and_goes_without_a_trace(
    cluster: Cluster, release: Release, deploy: Callable[..., Deployment]
) -> None:
    before = volumes(cluster)
    endpoint = release.endpoints(cluster.nodes[0].address)[0]
    streamed = asking(endpoint, release.api_key(), stream=True)
    began = time.monotonic()
    deployment = deploy("smoke", replicas=2)
    ready = time.monotonic()
    assert first_text(streamed)
    begun = time.monotonic()
    answers = chat(release, cluster, release.api_key())
    assert len(answers) == 2
    assert all(answer["choices"][0]["message"]["content"] for answer in answers)
    assert all(answer["usage"]["completion_tokens"] == 8 for answer in answers)
    startup = deployment.get()["status"]["startup"]
    print(f"\napply to two Ready replicas: {ready - began:.1f} s; of the first one: {startup}")
    print(f"then, to the first token through the router: {begun - ready:.2f} s")
    deployment.delete()

    def is_empty() -> bool:
        kinds = ",".join(KINDS)
        selector = "kvasir.dev/deployment=smoke"
        found = cluster.kubectl(
            "-n", deployment.namespace, "get", kinds, "-l", selector, "-o", "name"
        )
        return not found

    wait_for("the end of everything that was made for the model", is_empty, 120, 0.5)
    # An earlier test's may have gone meanwhile.
    assert volumes(cluster) <= before


def test_nobody_without_a_key_gets_an_answer(
    cluster: Cluster, release: Release, deploy: Callable[..., Deployment]
) -> None:
    deploy("smoke")
    with pytest.raises(urllib.error.HTTPError) as refused:
        chat(release, cluster, "not-a-key")
    refused.value.close()
    assert refused.value.code == 401
    assert release.api_key() is not None


def test_the_charts_own_test_chats(release: Release, deploy: Callable[..., Deployment]) -> None:
    deploy("smoke")
    assert "Succeeded" in release.test()
