"""Keys and limits, from a client's side."""

import asyncio
import json

import pytest

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key

BODY = {"model": "m", "messages": [], "max_tokens": 100}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer kv-{name}"}


def write_keys(path, *keys: dict) -> None:
    entries = [ApiKey(hash=hash_key(f"kv-{key['id']}".encode()), **key) for key in keys]
    path.write_bytes(dump_keys(KeyFile(keys=tuple(entries))))


@pytest.fixture
def keys_file(tmp_path):
    return tmp_path / "keys.yaml"


@pytest.fixture
async def start(start_replica, start_router, model_entry, keys_file):
    """A router with keys, for models m and n."""

    async def start(*keys: dict, **options):
        write_keys(keys_file, *keys)
        replica = await start_replica()
        entries = [model_entry("m", replica, aliases=["alias"]), model_entry("n", replica)]
        router = await start_router(entries, keys_file=keys_file, **options)
        router.engine = replica
        return router

    return start


def usage(prompt: int, completion: int) -> dict:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer kv-x"}, {"api-key": "kv-a"}])
async def test_without_a_known_key_nothing_is_answered(start, client, headers) -> None:
    router = await start({"id": "a"})
    for method, path in (
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/models"),
        ("GET", "/v1/models/m"),
    ):
        response = await client.request(method, router.url + path, json=BODY, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    assert router.engine.requests == []


async def test_no_body_is_asked_for_or_kept_without_a_known_key(start) -> None:
    router = await start({"id": "a"})
    head = b"POST /score HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n%b\r\n\r\n"
    for length in (b"Content-Length: 60000000", b"Transfer-Encoding: chunked"):
        for lines in (length, length + b"\r\nExpect: 100-continue"):
            answer = await router.exchange(head % (b"kv-b", lines))
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert b"\r\nConnection: close\r\n" in answer
            assert b"WWW-Authenticate: Bearer" in answer
    assert await router.metric("admission_refusals_total", reason="unauthorized") == 4
    reader, writer = await router.connect()
    writer.write(head % (b"kv-a", b"Content-Length: 11\r\nExpect: 100-continue"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'{"model":1}')
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_revoked_key_ends_with_the_next_request_of_its_connection(
    start, post, keys_file, eventually
) -> None:
    router = await start({"id": "a"})
    keyring = router.server.gateway.admission.keyring
    request = post(b'{"model":"m"}', b"Authorization: Bearer kv-a", target=b"/score")
    reader, writer = await router.connect()
    for _ in range(3):  # from the second on the header is a known one
        writer.write(request)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"}")
    write_keys(keys_file, {"id": "b"})
    await eventually(lambda: keyring.find(b"Bearer kv-a") is None)
    writer.write(request[:-1])
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_probes_need_no_key_and_metrics_are_elsewhere(start, client) -> None:
    router = await start({"id": "a"})
    for path in ("/health", "/ready"):
        assert (await client.get(router.url + path)).status_code == 200
    assert (await client.get(f"{router.url}/metrics")).status_code == 404
    text = (await client.get(f"{router.admin_url}/metrics")).text
    assert "kvasir_router_api_keys 1.0" in text


async def test_a_key_lets_in_and_goes_no_further(start, client) -> None:
    router = await start({"id": "a"})
    response = await client.post(f"{router.url}/score", json=BODY, headers=bearer("a"))
    assert response.status_code == 200
    [request] = router.engine.requests
    assert request.header("authorization") is None
    assert "kv-a" not in str(request)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "kv-a"}, 200),
        ({"X-Api-Key": "kv-x"}, 401),
        (bearer("a") | {"x-api-key": "kv-x"}, 200),
        (bearer("x") | {"x-api-key": "kv-a"}, 401),
    ],
)
async def test_a_key_in_its_own_header_counts_where_there_is_no_other(
    start, client, headers: dict[str, str], status: int
) -> None:
    router = await start({"id": "a"})
    for _ in range(3):  # from the second on the header is a known one
        response = await client.post(f"{router.url}/score", json=BODY, headers=headers)
        assert response.status_code == status
    listed = await client.get(f"{router.url}/v1/models", headers=headers)
    assert listed.status_code == status
    assert not [each for each in router.engine.requests if "kv-" in str(each)]


async def test_without_a_key_file_the_headers_are_the_engines(
    start_replica, start_router, model_entry, client
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)])
    headers = bearer("a") | {"X-Api-Key": "kv-b"}
    await client.post(f"{router.url}/score", json=BODY, headers=headers)
    assert replica.requests[0].header("authorization") == "Bearer kv-a"
    assert replica.requests[0].header("x-api-key") == "kv-b"


async def test_two_authorizations_are_refused(start, post) -> None:
    router = await start({"id": "a"})
    answer = await router.exchange(
        post(b"{}", b"Authorization: Bearer kv-a", b"Authorization: Bearer kv-b")
    )
    assert answer.startswith(b"HTTP/1.1 400")
    answer = await router.exchange(post(b"{}", b"X-Api-Key: kv-a", b"x-api-key: kv-a"))
    assert answer.startswith(b"HTTP/1.1 400")


async def test_models_are_listed_and_served_as_the_key_allows(start, client) -> None:
    router = await start({"id": "a", "models": ("m",)}, {"id": "b", "models": ("n*",)})
    for key, names in (("a", ["m", "alias"]), ("b", ["n"])):
        listed = (await client.get(f"{router.url}/v1/models", headers=bearer(key))).json()
        assert [card["id"] for card in listed["data"]] == names
    for key, name, status in (
        ("a", "m", 200),
        ("a", "alias", 200),
        ("a", "n", 403),
        ("b", "alias", 403),
        ("a", "unknown", 403),
        ("b", "nothing", 404),
    ):
        one = await client.get(f"{router.url}/v1/models/{name}", headers=bearer(key))
        sent = await client.post(f"{router.url}/score", json={"model": name}, headers=bearer(key))
        assert one.status_code == sent.status_code == status, (key, name)
        if status == 404:
            assert "`m`" not in sent.json()["error"]["message"]


async def test_a_limit_is_429_and_counted(start, client) -> None:
    router = await start({"id": "a", "tenant": "t", "requests_per_minute": 2})
    url = f"{router.url}/score"
    codes = [(await client.post(url, json=BODY, headers=bearer("a"))).status_code for _ in range(3)]
    assert codes == [200, 200, 429]
    last = await client.post(url, json=BODY, headers=bearer("a"))
    assert last.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(last.headers["retry-after"]) <= 30
    labels = {"tenant": "t", "reason": "requests_per_minute"}
    assert await router.metric("admission_refusals_total", **labels) == 2
    assert await router.metric("tenant_requests_total", tenant="t", code="200") == 2


async def test_usage_is_settled_as_the_engine_counts_it(start, client) -> None:
    router = await start({"id": "a", "tenant": "t", "tokens_per_day": 300})
    url = f"{router.url}/v1/chat/completions"

    async def answer(exchange) -> None:
        await exchange.json(200, usage(20, 30))

    router.engine.script = answer
    codes = [(await client.post(url, json=BODY, headers=bearer("a"))).status_code for _ in range(8)]
    assert codes == [200] * 6 + [429] * 2
    assert await router.metric("tenant_tokens_total", tenant="t", kind="prompt") == 120
    assert await router.metric("tenant_tokens_total", tenant="t", kind="completion") == 180
    assert await router.metric("tokens_total", model="m", kind="completion") == 180


async def test_a_refused_request_costs_nothing(start, client) -> None:
    router = await start({"id": "a", "tokens_per_day": 300})

    async def answer(exchange) -> None:
        await exchange.json(400, {"error": {}})

    router.engine.script = answer
    url = f"{router.url}/v1/chat/completions"
    codes = [(await client.post(url, json=BODY, headers=bearer("a"))).status_code for _ in range(5)]
    assert codes == [400] * 5


async def test_a_client_that_leaves_pays_for_what_it_got(start, client, eventually) -> None:
    router = await start({"id": "a", "tenant": "t"})

    async def answer(exchange) -> None:
        await exchange.start_events()
        for _ in range(50):
            await exchange.chunk(b'data: {"x":"' + b"y" * 180 + b'"}\n\n')
        await exchange.client_left()

    router.engine.script = answer
    request = {"json": BODY | {"stream": True}, "headers": bearer("a")}
    async with client.stream("POST", f"{router.url}/v1/chat/completions", **request) as response:
        async for _ in response.aiter_bytes():
            break

    tenants = router.server.gateway.tenants.tenants
    await eventually(lambda: "t" in tenants)
    assert tenants["t"].prompt_tokens > 0
    assert 0 < tenants["t"].completion_tokens <= 50


async def test_an_edited_file_is_in_use_without_a_restart(
    start, client, keys_file, eventually
) -> None:
    router = await start({"id": "a"})
    admission = router.server.gateway.admission
    write_keys(keys_file, {"id": "b"}, {"id": "c"})
    await eventually(lambda: len(admission.keyring) == 2)
    url = f"{router.url}/v1/models"
    assert (await client.get(url, headers=bearer("a"))).status_code == 401
    assert (await client.get(url, headers=bearer("b"))).status_code == 200
    keys_file.write_text("keys: 5")
    await eventually(lambda: admission.reads["refused"] >= 1)
    assert (await client.get(url, headers=bearer("b"))).status_code == 200
    assert await router.metric("key_file_reads_total", result="refused") >= 1


async def test_limits_are_divided_by_the_routers_that_a_name_leads_to(
    start, client, eventually
) -> None:
    """Of four, three are gone."""
    options = {"routers": 4, "routers_dns": "localhost"}
    router = await start({"id": "a", "requests_per_minute": 4}, **options)
    await eventually(lambda: router.server.gateway.admission.keyring._routers == 1)
    url = f"{router.url}/v1/chat/completions"
    answers = [await client.post(url, json=BODY, headers=bearer("a")) for _ in range(6)]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert "4 requests a minute" in refused.json()["error"]["message"]


async def test_tenants_do_not_share_a_cache_unless_told_to(start, client) -> None:
    router = await start(
        {"id": "one", "tenant": "a"}, {"id": "two", "tenant": "a"}, {"id": "three", "tenant": "b"}
    )
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    for name in ("one", "two", "three"):
        await client.post(f"{router.url}/v1/chat/completions", json=body, headers=bearer(name))
    one, two, three = (json.loads(request.body) for request in router.engine.requests)
    assert one == two == {**body, "cache_salt": one["cache_salt"]}
    assert three["cache_salt"] != one["cache_salt"]
    refused = await client.post(
        f"{router.url}/v1/chat/completions",
        json={**body, "cache_salt": 7},
        headers=bearer("one"),
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "cache_salt"
    router = await start({"id": "one"}, shared_prompts=True)
    await client.post(f"{router.url}/v1/chat/completions", json=body, headers=bearer("one"))
    assert json.loads(router.engine.requests[0].body) == body


@pytest.mark.parametrize(("seconds", "code"), [("1", 504), ("60", 499)])
async def test_what_a_client_does_not_wait_for_is_charged(
    start_replica, start_router, model_entry, keys_file, client, scripts, eventually, seconds, code
) -> None:
    """Of a unary answer nothing is sent before its end: a deadline or a client that leaves must not
    make it free."""
    write_keys(keys_file, {"id": "one", "tokens_per_minute": 1000})
    replica = await start_replica(script=scripts.silent)
    router = await start_router([model_entry("m", replica)], keys_file=keys_file)
    body = {"model": "m", "prompt": "x" * 2400, "max_tokens": 1}
    url, headers = f"{router.url}/v1/completions", bearer("one") | {"x-request-timeout": seconds}
    asking = asyncio.create_task(client.post(url, json=body, headers=headers))
    await eventually(lambda: replica.requests)
    if code == 499:
        asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    async def ended() -> bool:
        return await router.metric("requests_total", model="m", code=str(code)) == 1

    async with asyncio.timeout(10):
        while not await ended():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    refused = await client.post(url, json=body, headers=headers)
    assert refused.status_code == 429
    assert "1000 tokens a minute" in refused.json()["error"]["message"]
