"""Which model a request goes to, and what the router answers itself."""

import pytest

from kvasir_router.wire import header_names
from kvasir_router.wire.endpoints import ENDPOINTS

pytestmark = pytest.mark.slow


@pytest.fixture
async def fleet(start_replica, start_router, model_entry):
    a, b, c = [await start_replica(max_model_len=length) for length in (4096, 2048, 8192)]
    router = await start_router(
        [model_entry("org/a", a, b, aliases=["a", "gpt-4"]), model_entry("b", c)]
    )
    return router, a, b, c


async def test_models_and_aliases_are_routed_by_name(fleet, client) -> None:
    router, a, b, c = fleet
    for name in ("org/a", "a", "gpt-4"):
        response = await client.post(f"{router.url}/v1/completions", json={"model": name})
        assert response.status_code == 200
    await client.post(f"{router.url}/v1/embeddings", json={"input": "x", "model": "b"})
    assert len(a.requests) + len(b.requests) == 3
    assert [request.target for request in c.requests] == ["/v1/embeddings"]


async def test_an_unknown_model_is_404_and_names_those_that_exist(fleet, client) -> None:
    router, *_ = fleet
    response = await client.post(f"{router.url}/v1/completions", json={"model": "c"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    for name in ("`c`", "`org/a`", "`gpt-4`", "`b`"):
        assert name in error["message"]


@pytest.mark.parametrize("path", [row.path for row in ENDPOINTS if row.body != "none"])
async def test_every_route_of_an_engine_goes_by_the_model(fleet, client, path: str) -> None:
    router, *_, c = fleet
    response = await client.post(router.url + path, json={"model": "b"}, params={"q": "1"})
    assert response.json() == {"target": f"{path}?q=1"}
    assert [request.body for request in c.requests] == [b'{"model":"b"}']


async def test_an_upload_goes_by_its_form_s_model(fleet, client) -> None:
    router, a, b, c = fleet
    url = f"{router.url}/v1/audio/transcriptions"
    files = {"file": ("a.wav", b"RIFF" * 50_000)}
    response = await client.post(url, data={"model": "b"}, files=files)
    assert response.status_code == 200
    assert b"RIFF" * 50_000 in c.requests[0].body
    assert c.requests[0].header("content-type").startswith("multipart/form-data; boundary=")
    unknown = await client.post(url, data={"model": "x"}, files=files)
    assert unknown.json()["error"]["code"] == "model_not_found"
    broken = await client.post(
        url, content=b"--x", headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_body")
    assert len(a.requests + b.requests + c.requests) == 1


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "The body is empty: send a JSON object"),
        (b" \n", "The body is empty"),
        (b"{", "The body is not a JSON object: Input data was truncated"),
        (b"[]", "must be a JSON object, not []."),
        (b"null", "must be a JSON object, not null."),
        (b'"m"', 'must be a JSON object, not "m".'),
        (b'["' + b"m" * 1000 + b'"]', "m..."),
        (b'["' + b"m" * 100_000 + b'"]', "must be a JSON object, and its `model` a string."),
        (b"{}", "missing"),
        (b'{"model": null}', "missing"),
        (b'{"model": ""}', "missing"),
        (b'{"model": 5}', "`model` must be a string, not 5."),
        (b'{"model": {"name": "b"}}', '`model` must be a string, not {"name":"b"}.'),
        (b'{"model": 5, "x": [', "`model` must be a string."),
        (b'{"model": "\xff"}', "The body is not UTF-8"),
        (b'{"model": "b"} trailing', "JSON"),
        (b'{"model": "b", "x": ' + b"[" * 100_000, "nested too deeply"),
        (b"model=b&prompt=x", "JSON"),
    ],
)
async def test_bad_bodies_are_400(fleet, client, body: bytes, word: str) -> None:
    router, *_, c = fleet
    response = await client.post(f"{router.url}/v1/completions", content=body)
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]
    assert len(response.json()["error"]["message"]) < 120
    assert response.headers["x-request-id"]
    assert c.requests == []


async def test_a_list_of_models_merged_over_replicas(fleet, client) -> None:
    router, *_ = fleet
    response = await client.get(f"{router.url}/v1/models")
    assert (await client.get(f"{router.url}/models")).json() == response.json()
    assert response.json()["object"] == "list"
    cards = {card["id"]: card for card in response.json()["data"]}
    assert list(cards) == ["org/a", "a", "gpt-4", "b"]
    # What every replica can serve.
    assert [card["max_model_len"] for card in cards.values()] == [2048, 2048, 2048, 8192]
    assert all(card["object"] == "model" and card["owned_by"] for card in cards.values())
    assert all(isinstance(card["created"], int) for card in cards.values())


@pytest.mark.parametrize(
    ("path", "name"), [("org/a", "org/a"), ("org%2Fa", "org/a"), ("gpt-4", "gpt-4")]
)
async def test_one_model(fleet, client, path: str, name: str) -> None:
    router, *_ = fleet
    response = await client.get(f"{router.url}/v1/models/{path}")
    assert response.json()["id"] == name
    assert response.json()["root"] == "org/a"


async def test_one_unknown_model(fleet, client) -> None:
    router, *_ = fleet
    response = await client.get(f"{router.url}/v1/models/nothing")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/v1/x"), ("POST", "/sleep"), ("POST", "/")],
)
async def test_routes_that_are_no_model_api_are_404(fleet, client, method, path) -> None:
    router, a, b, c = fleet
    response = await client.request(method, router.url + path, json={"model": "b"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert a.requests + b.requests + c.requests == []


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("HEAD", "/v1/audio/speech", "POST"),
        ("GET", "/tokenize", "POST"),
        ("GET", "/v1/audio/transcriptions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/v1/models/b", "GET, HEAD"),
        ("POST", "/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
    ],
)
async def test_a_route_s_other_method_is_named(fleet, client, method, path, allowed) -> None:
    router, a, b, c = fleet
    response = await client.request(method, router.url + path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        error = response.json()["error"]
        assert error["code"] == "method_not_allowed"
        assert error["message"] == f"{method} is not for {path}; use {allowed}."
    assert a.requests + b.requests + c.requests == []


async def test_other_methods_are_405(fleet, client) -> None:
    router, *_ = fleet
    response = await client.delete(f"{router.url}/v1/models/b")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD"
    unknown = await client.request("PATCH", f"{router.url}/v1/models/b")
    assert unknown.status_code == 405
    assert unknown.headers["allow"] == "GET, HEAD, POST, DELETE, OPTIONS"


async def test_health_and_metrics(fleet, client) -> None:
    router, *_ = fleet
    assert (await client.get(f"{router.url}/health")).status_code == 200
    assert (await client.get(f"{router.url}/ready")).status_code == 200
    await client.post(f"{router.url}/v1/completions", json={"model": "b"})
    text = (await client.get(f"{router.url}/metrics")).text
    assert 'kvasir_router_requests_total{code="200",model="b"} 1.0' in text
    assert 'kvasir_router_replica_requests_total{model="b",replica="r0"} 1.0' in text
    assert 'kvasir_router_request_duration_seconds_bucket{le="+Inf",model="b"} 1.0' in text


@pytest.mark.parametrize("count", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_labels_stay_bounded(fleet, client, count: int) -> None:
    router, *_ = fleet
    before = len((await client.get(f"{router.url}/metrics")).text)
    reader, writer = await router.connect()
    for start in range(0, count, 500):
        for number in range(start, start + 500):
            lines = b"HTTP/1.1\r\nHost: a\r\nX-Name-%d: a\r\n" % number
            if number % 2:
                writer.write(b"GET /v1/x%d %b\r\n" % (number, lines))
                continue
            body = b'{"model": "model-%d"}' % number
            head = b"POST /score %bContent-Length: %d\r\n\r\n" % (lines, len(body))
            writer.write(head + body)
        answered = 0
        while answered < 500:
            answered += (await reader.read(1 << 16)).count(b"HTTP/1.1 404")
    writer.close()
    assert await router.metric("requests_total", model="", code="404") == count
    assert len((await client.get(f"{router.url}/metrics")).text) < before + 5000
    assert len(header_names.kinds) <= 1024
