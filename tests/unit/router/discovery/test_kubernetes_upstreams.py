"""Servers of others that LLMDeployments name, and their keys in Secrets."""

import asyncio
import base64

import msgspec
import pytest
from support.kubernetes_api import LLMDS, PODS

from kvasir.kube.watch import Timing
from kvasir_router.discovery.kubernetes_objects import LLMDeployment
from kvasir_router.discovery.kubernetes_source import KubernetesSource
from kvasir_router.discovery.kubernetes_upstreams import (
    FoundKey,
    KeyName,
    keys_wanted,
    upstream_replicas,
)
from kvasir_router.discovery.specs import EngineKind, ModelSpec, ReplicaSpec, Upstream
from kvasir_router.options.cluster_scope import ClusterScope
from kvasir_router.policy.registry import policy_names

NAME = KeyName("n", "s", "k")
SECRET = "/api/v1/namespaces/n/secrets/s"
KEY = {"secretRef": {"name": "s", "key": "k"}}
URL = {"url": "https://a.example/x/v1"}


@pytest.fixture
def of(deployment):
    """of(*urls): a deployment with these servers, as the API has it."""

    def of(*urls):
        given = deployment("hosted", model={}, external={"urls": list(urls)})
        return msgspec.convert(given, LLMDeployment)

    return of


def test_a_server_with_all_it_may_have(of) -> None:
    full = {
        **URL,
        "model": "large-2",
        "key": KEY,
        "keyHeader": "x-api-key",
        "serverName": "b.example",
        "healthPath": "/health",
    }
    given = of(full)
    assert keys_wanted([given]) == {NAME}
    [replica] = upstream_replicas(given, {NAME: FoundKey("sk")})
    assert replica == ReplicaSpec(
        "uid-n-hosted/url-0",
        "a.example",
        443,
        engine=EngineKind.OPENAI,
        tls=True,
        upstream=Upstream("/x/v1", "large-2", "sk", "x-api-key", "", "b.example", "/health"),
    )
    assert "sk" not in repr(replica).replace("disk", "")
    assert "sk" not in repr(FoundKey("sk"))


@pytest.mark.parametrize(
    ("url", "keys", "problem"),
    [
        ({**URL, "key": KEY}, {}, "has not been read yet"),
        ({**URL, "key": KEY}, {NAME: FoundKey("", "Secret 's' does not exist")}, "does not exist"),
        ({"url": "http://localhost:8081"}, {}, "the router's own machine"),
        ({"url": "http://a.LOCALHOST."}, {}, "the router's own machine"),
        ({"url": "http://127.0.0.7:8081"}, {}, "the router's own machine"),
        ({"url": "http://169.254.169.254/latest"}, {}, "link-local"),
        ({"url": "http://[fe80::1]/v1"}, {}, "link-local"),
        ({"url": "http://0.0.0.0/v1"}, {}, "the router's own machine"),
        ({"url": "https://u:p@a/v1"}, {}, "must be of the form"),
        ({**URL, "caBundle": "-----BEGIN CERTIFICATE-----"}, {}, "caBundle"),
    ],
)
def test_one_that_cannot_be_used_says_why(of, url, keys, problem) -> None:
    [replica] = upstream_replicas(of(url), keys)
    assert problem in replica.upstream.problem


def test_what_names_the_routers_own_is_not_looked_at(of) -> None:
    given = of({**URL, "key": {"env": "PATH"}}, {**URL, "key": {"file": "/etc/passwd"}})
    assert keys_wanted([given]) == set()
    assert [each.upstream.key for each in upstream_replicas(given, {})] == ["", ""]


def data(text: str) -> dict[str, str]:
    return {"k": base64.b64encode(text.encode()).decode()}


@pytest.fixture
async def upstream(start_api, deployment, eventually, monkeypatch):
    """The API server, and a function that waits for what the source says of the one upstream."""
    monkeypatch.setattr("kvasir_router.discovery.kubernetes_upstreams.READ_SECONDS", 0.02)
    api = await start_api()
    api.put(LLMDS, deployment("hosted", model={}, external={"urls": [{**URL, "key": KEY}]}))
    timing = Timing(pause=0.01, longest_pause=0.05)
    scope, policies = ClusterScope(), policy_names()
    source = KubernetesSource(scope, lambda good: None, policies, api.access, timing)
    seen: list[Upstream] = []

    async def follow() -> None:
        async for [model] in source.watch():
            assert isinstance(model, ModelSpec)
            [replica] = model.replicas
            assert replica.upstream is not None
            seen.append(replica.upstream)

    async def shows(key: str = "", problem: str = "") -> None:
        await eventually(lambda: bool(seen) and seen[-1].key == key and problem in seen[-1].problem)
        assert bool(seen[-1].problem) is bool(problem)

    task = asyncio.create_task(follow())
    yield api, shows
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_key_is_read_of_its_secret_alone_and_again(upstream) -> None:
    api, shows = upstream
    await shows(problem="Secret 's' does not exist")
    api.secrets[SECRET] = {"other": ""}
    await shows(problem="has no key 'k'")
    api.secrets[SECRET] = {"k": "*"}
    await shows(problem="is not text")
    api.secrets[SECRET] = data("two words")
    await shows(problem="holds no key that a header can carry")
    api.secrets[SECRET] = data("sk-first\n")
    await shows(key="sk-first")
    api.secrets[SECRET] = data("sk-second")
    await shows(key="sk-second")
    assert {path for path, _ in api.requests if "secrets" in path} == {SECRET}


async def test_a_router_that_may_not_read_it_says_so(upstream) -> None:
    api, shows = upstream
    await shows(problem="does not exist")
    api.refuse = {"secret": 403}
    await shows(problem="routers may not read Secret 's' (the chart's router.readableSecrets)")


async def test_an_api_server_that_fails_leaves_the_key(upstream, eventually) -> None:
    api, shows = upstream
    api.secrets[SECRET] = data("sk")
    await shows(key="sk")
    api.refuse = {"secret": 500}
    asked = len(api.requests)
    await eventually(lambda: len(api.requests) > asked + 3)
    await shows(key="sk")


@pytest.fixture
async def selected(start_api, deployment, eventually):
    """The API server, and a function that waits for the ids of the model's replicas."""
    api = await start_api()
    timing = Timing(pause=0.01, longest_pause=0.05)
    scope, policies = ClusterScope(), policy_names()
    source = KubernetesSource(scope, lambda good: None, policies, api.access, timing)
    seen: list[tuple[ReplicaSpec, ...]] = []

    async def follow() -> None:
        async for [model] in source.watch():
            assert isinstance(model, ModelSpec)
            seen.append(model.replicas)

    async def shows(*ids: str) -> ReplicaSpec | None:
        await eventually(lambda: bool(seen) and {each.id for each in seen[-1]} == set(ids))
        return seen[-1][0] if ids else None

    def select(**pods) -> None:
        api.put(LLMDS, deployment("hosted", model={}, external={"pods": pods}))

    select(matchLabels={"app": "vllm"})
    task = asyncio.create_task(follow())
    yield api, select, shows
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def guest(pod, name: str, app: str = "vllm", namespace: str = "n", **more):
    made = pod(name, namespace=namespace, **more)
    made["metadata"]["labels"] = {"app": app}
    return made


async def test_pods_of_others_come_and_go(selected, pod, leaving) -> None:
    api, select, shows = selected
    await shows()
    api.put(PODS, guest(pod, "p1", ip="10.0.0.1", restarts=3))
    api.put(PODS, guest(pod, "p2", app="other", ip="10.0.0.2"))
    api.put(PODS, guest(pod, "p3", namespace="elsewhere", ip="10.0.0.3"))
    replica = await shows("uid-p1/3")
    assert replica == ReplicaSpec("uid-p1/3", "10.0.0.1", 8000, engine=EngineKind.OPENAI)
    select(matchLabels={"app": "other"}, port=80, engine="vllm", model="org/own")
    replica = await shows("uid-p2/0")
    assert (replica.port, replica.engine) == (80, EngineKind.VLLM)
    assert replica.upstream == Upstream(model="org/own", health_path="/health")
    api.put(PODS, leaving(guest(pod, "p2", app="other", ip="10.0.0.2")))
    select(matchLabels={"app": "other", "more": "x"})
    await shows()


async def test_none_is_told_to_be_of_the_fleet(selected, pod) -> None:
    api, select, shows = selected
    select(matchLabels={"app": "vllm"}, engine="kvasir")
    api.put(PODS, guest(pod, "p1", ip="10.0.0.1"))
    replica = await shows("uid-p1/0")
    assert replica.engine is EngineKind.OPENAI
