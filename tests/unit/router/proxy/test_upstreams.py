"""Servers that are not of the fleet, behind a base URL, in front of real sockets and TLS."""

import json
import ssl

import pytest
from support.certificates import self_signed

from kvasir_router.fleet.replica import Health
from kvasir_router.options.router_settings import Probing, QueueLimits
from kvasir_router.wire.long_bodies.body_scan import SCANNED_BYTES

SECRET = "s" * 32
CHAT = {"model": "hosted", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = {"id": "1", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def provider_tls(folder, name: str = "provider"):
    cert, key = self_signed(folder, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


async def answered(exchange) -> None:
    await exchange.json(
        200, ANSWER, b"Set-Cookie: a=b", b"openai-organization: ours", b"X-Kvasir-Usage: {}"
    )


def status(code: int, *lines: bytes):
    async def script(exchange) -> None:
        await exchange.json(code, {"error": {"message": "no"}}, *lines)

    return script


def entry(url: str, **fields):
    """A model of one upstream."""
    return {"name": "hosted", "replicas": [{"id": "provider", "url": url, **fields}]}


@pytest.fixture
async def provider(start_replica, tmp_path, monkeypatch):
    """A provider over TLS, and the fields of a replica that it is."""
    monkeypatch.setenv("PROVIDER_KEY", "sk-upstream")
    tls, cert = provider_tls(tmp_path)
    replica = await start_replica(tls=tls, script=answered)
    fields = {"model": "large-2", "key_env": "PROVIDER_KEY", "ca_file": str(cert)}
    return replica, entry(f"{replica.url}/openai/v1", **fields)


async def test_a_provider_gets_its_own_key_path_and_model_and_nothing_else(
    start_router, client, provider
) -> None:
    replica, model = provider
    router = await start_router([model], fleet_secret=SECRET)
    response = await client.post(
        f"{router.url}/v1/chat/completions?a=1",
        json={**CHAT, "temperature": 0.5},
        headers={
            "Authorization": "Bearer client",
            "X-Api-Key": "client",
            "Cookie": "client=1",
            "OpenAI-Organization": "client",
            "anthropic-beta": "x",
        },
    )
    assert response.json() == ANSWER
    assert "set-cookie" not in response.headers
    assert "openai-organization" not in response.headers
    [request] = replica.requests
    assert request.target == "/openai/v1/chat/completions?a=1"
    assert json.loads(request.body) == {**CHAT, "model": "large-2", "temperature": 0.5}
    names = {name.lower(): value for name, value in request.headers}
    assert names["authorization"] == "Bearer sk-upstream"
    assert names["host"] == f"127.0.0.1:{replica.port}"
    assert names["anthropic-beta"] == "x"
    assert set(names) <= {
        *("host", "accept", "user-agent", "content-type", "anthropic-beta", "authorization"),
        *("content-length", "x-request-id"),
    }
    sent = repr(request)
    assert "client" not in sent.replace("python-httpx", "")
    assert SECRET not in sent
    assert await router.metric("tokens_total", model="hosted", kind="completion") == 2


async def test_the_key_is_in_no_metric_and_no_view(start_router, client, provider) -> None:
    _, model = provider
    router = await start_router([model])
    for path in ("/metrics", "/debug/fleet", "/serving"):
        text = (await client.get(router.admin_url + path)).text
        assert "sk-upstream" not in text
    spec = router.replica("hosted", "provider").spec
    assert "sk-upstream" not in repr(spec)


async def test_another_header_takes_the_key_as_it_is(start_router, client, provider) -> None:
    replica, model = provider
    model["replicas"][0]["key_header"] = "x-api-key"
    router = await start_router([model])
    await client.post(f"{router.url}/v1/messages", json={**CHAT, "max_tokens": 5})
    [request] = replica.requests
    assert request.header("x-api-key") == "sk-upstream"
    assert request.header("authorization") is None


async def test_a_long_body_gets_the_model_and_is_otherwise_the_same(
    start_router, client, provider
) -> None:
    replica, model = provider
    router = await start_router([model])
    text = "x" * (2 * SCANNED_BYTES)
    body = {"messages": [{"role": "user", "content": text}], "model": "hosted", "stream": True}
    await client.post(f"{router.url}/v1/chat/completions", json=body)
    sent = json.loads(replica.requests[0].body)
    assert sent == {**body, "model": "large-2", "stream_options": {"include_usage": True}}


async def test_a_form_gets_the_model(start_router, client, provider) -> None:
    replica, model = provider
    router = await start_router([model])
    await client.post(
        f"{router.url}/v1/audio/transcriptions",
        data={"model": "hosted", "language": "en"},
        files={"file": ("a.wav", b"RIFF\r\n--model", "audio/wav")},
    )
    [request] = replica.requests
    assert request.target == "/openai/v1/audio/transcriptions"
    assert b'name="model"\r\n\r\nlarge-2\r\n' in request.body
    assert b"RIFF\r\n--model" in request.body
    assert b"hosted" not in request.body


async def test_an_untrusted_certificate_is_told_and_gets_no_key(
    start_router, client, provider, eventually
) -> None:
    replica, model = provider
    del model["replicas"][0]["ca_file"]
    router = await start_router([model], wait=False)
    upstream = router.replica("hosted", "provider")
    await eventually(lambda: bool(upstream.problem))
    assert "certificate is not trusted" in upstream.problem
    response = await client.post(f"{router.url}/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert replica.requests == []
    problems = (await client.get(f"{router.admin_url}/serving")).json()["problems"]
    assert problems == {"provider": upstream.problem}


async def test_a_certificate_of_another_name_is_refused_unless_it_is_told(
    start_router, provider, eventually
) -> None:
    _, model = provider
    model["replicas"][0]["server_name"] = "elsewhere.example"
    router = await start_router([model], wait=False)
    upstream = router.replica("hosted", "provider")
    await eventually(lambda: bool(upstream.problem))
    assert upstream.health is not Health.READY


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_key_is_no_fault_of_the_client(
    start_router, client, provider, code
) -> None:
    replica, model = provider
    replica.script = status(code)
    router = await start_router([model])
    response = await client.post(f"{router.url}/v1/chat/completions", json=CHAT)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_refused"
    assert "refused the router's key" in response.json()["error"]["message"]


async def test_no_redirect_is_followed_or_passed_on(start_router, client, provider) -> None:
    replica, model = provider
    replica.script = status(307, b"Location: https://elsewhere.example/")
    router = await start_router([model])
    response = await client.post(f"{router.url}/v1/chat/completions", json=CHAT)
    assert response.status_code == 502
    assert "location" not in response.headers
    assert len(replica.requests) == 1


async def test_a_full_provider_is_left_alone_as_long_as_it_asks_and_the_other_one_serves(
    start_router, start_replica, client
) -> None:
    full = await start_replica(script=status(429, b"Retry-After: 300"))
    other = await start_replica(script=answered)
    replicas = [
        {"id": name, "url": f"{replica.url}/api"}
        for name, replica in (("full", full), ("other", other))
    ]
    router = await start_router([{"name": "hosted", "policy": "round_robin", "replicas": replicas}])
    codes = [
        (await client.post(f"{router.url}/v1/chat/completions", json=CHAT)).status_code
        for _ in range(6)
    ]
    assert codes == [200] * 6
    assert len(full.requests) == 1
    assert len(other.requests) == 6
    assert other.requests[0].target == "/api/chat/completions"


async def test_a_lone_full_provider_says_when_to_come_again(
    start_router, start_replica, client
) -> None:
    full = await start_replica(script=status(429, b"Retry-After: 7"))
    router = await start_router([entry(f"{full.url}/v1")], waiting=QueueLimits(requests=0))
    response = await client.post(f"{router.url}/v1/chat/completions", json=CHAT)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    again = await client.post(f"{router.url}/v1/chat/completions", json=CHAT)
    assert again.status_code == 429
    assert len(full.requests) == 1


async def test_a_key_file_is_read_again_when_it_changes(
    start_router, start_replica, client, tmp_path, eventually
) -> None:
    replica = await start_replica(script=answered)
    key = tmp_path / "key"
    key.write_text("first\n")
    router = await start_router([entry(f"{replica.url}/v1", key_file=str(key))])
    await client.post(f"{router.url}/v1/chat/completions", json=CHAT)
    key.write_text("second\n")
    await eventually(lambda: router.replica("hosted", "provider").spec.upstream.key == "second")
    await eventually(lambda: router.replica("hosted", "provider").health is Health.READY)
    await client.post(f"{router.url}/v1/chat/completions", json=CHAT)
    keys = [request.header("authorization") for request in replica.requests]
    assert keys == ["Bearer first", "Bearer second"]


async def test_a_health_path_decides_whether_it_serves(
    start_router, start_replica, client, eventually
) -> None:
    replica = await start_replica(script=answered)
    replica.ready = 503
    router = await start_router(
        [entry(f"{replica.url}/v1", health_path="/ready")],
        wait=False,
        probing=Probing(0.2, 0.02, 1.0),
    )
    upstream = router.replica("hosted", "provider")
    await eventually(lambda: upstream.health is Health.NOT_READY)
    assert upstream.problem == "/ready answers with status 503"


async def test_members_that_the_router_puts_into_bodies_do_not_get_there(
    start_router, start_replica, client, tmp_path
) -> None:
    replica = await start_replica(script=answered)
    keys = tmp_path / "keys.yaml"
    keys.write_text('keys: [{id: k, key: "client-key-of-16-characters", tenant: a}]\n')
    router = await start_router([entry(f"{replica.url}/v1")], keys_file=keys)
    for content in ("hi", "x" * (2 * SCANNED_BYTES)):
        body = {"model": "hosted", "messages": [{"role": "user", "content": content}]}
        response = await client.post(
            f"{router.url}/v1/chat/completions",
            json=body,
            headers={"Authorization": "Bearer client-key-of-16-characters"},
        )
        assert response.status_code == 200
        assert json.loads(replica.requests[-1].body) == body


async def test_a_connection_that_breaks_ends_no_engine(start_router, client, provider) -> None:
    replica, model = provider

    async def breaks(exchange) -> None:
        exchange.reset()

    replica.script = breaks
    router = await start_router([model])
    for _ in range(3):
        response = await client.post(f"{router.url}/v1/chat/completions", json=CHAT)
        assert response.status_code == 503
    assert await router.metric("poison_requests_total") == 0
