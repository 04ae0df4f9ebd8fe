"""The router's Service and the key of a conversation."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kvasir.cli.kubectl.cluster_session import ClusterError, ClusterSession
from kvasir.cli.kubectl.router_chat.chat_target import find_target


def service(name: str, namespace: str, port: str = "http", number: int = 8080) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kvasir.dev/component": "router"},
        },
        "spec": {"ports": [{"name": port, "port": number}]},
    }


def secret(**entries: str) -> dict[str, Any]:
    data = {name: base64.b64encode(text.encode()).decode() for name, text in entries.items()}
    return {"metadata": {"name": "my-key", "namespace": "ml"}, "data": data}


@pytest.fixture(autouse=True)
def routers(recorded: Any) -> None:
    recorded.objects["services"] = [
        service("kvasir-router-admin", "a", "admin", 8081),
        service("one", "a"),
        service("two", "b", "https", 443),
    ]


async def test_the_service_is_that_of_the_models_url(session: Any, recorded: Any) -> None:
    [resource] = recorded.objects["llmdeployments"]
    for url, found in (
        ("https://two.b:443", ("two", "b", 443, "https")),
        ("http://two.b.svc.cluster.local:443", ("two", "b", 443, "https")),
        ("https://models.example.com", ("one", "a", 8080, "http")),
        (None, ("one", "a", 8080, "http")),
    ):
        resource["status"]["url"] = url
        target = await find_target(session, "qwen")
        assert (target.service, target.namespace, target.port, target.scheme) == found
    assert (target.model, target.api_key) == ("qwen", None)


async def test_the_model_is_asked_by_the_name_that_was_given(session: Any, recorded: Any) -> None:
    assert (await find_target(session, "chat")).model == "chat"
    recorded.objects["llmdeployments"][0]["spec"]["model"]["name"] = "Qwen/Qwen3"
    assert (await find_target(session, "qwen")).model == "Qwen/Qwen3"


async def test_no_router(session: ClusterSession, recorded: Any) -> None:
    recorded.objects["services"] = recorded.objects["services"][:1]
    with pytest.raises(ClusterError, match="there is no Service of a router"):
        await find_target(session, "qwen")
    recorded.forbidden = {"services"}
    with pytest.raises(ClusterError, match="that you may read"):
        await find_target(session, "qwen")


@pytest.mark.parametrize("reference", ["my-key", "my-key/k"])
async def test_a_key_of_a_secret(session: Any, recorded: Any, reference: str) -> None:
    recorded.objects["secrets"] = [secret(k=" kv-abc\n")]
    assert (await find_target(session, "qwen", reference)).api_key == "kv-abc"


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("absent", "there is no Secret 'absent' in namespace ml"),
        ("my-key", "Secret my-key has a, b; name the entry as my-key/ENTRY"),
        ("my-key/c", "Secret my-key has a, b; name the entry as my-key/ENTRY"),
        ("my-key/b", "my-key/b is no key; it must be printable ASCII"),
    ],
)
async def test_what_is_no_key(session: Any, recorded: Any, reference: str, problem: str) -> None:
    recorded.objects["secrets"] = [secret(a="kv-abc", b="kv-\u00e4\x00")]
    with pytest.raises(ClusterError, match=problem) as raised:
        await find_target(session, "qwen", reference)
    assert "kv-" not in str(raised.value).replace("my-key", "")
