"""Cross-origin requests: off unless configured, and then as browsers need it."""

from typing import Any

import pytest

PAGE = "https://app.example.com"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}


@pytest.fixture
def start(start_replica, start_router, model_entry):
    async def start(*origins: str) -> Any:
        replica = await start_replica()
        return await start_router([model_entry("m", replica)], cors_origins=origins), replica

    return start


def cors_headers(response: Any) -> dict[str, str]:
    return {k: v for k, v in response.headers.items() if k.startswith("access-control-")}


async def test_off_by_default(start, client) -> None:
    router, _ = await start()
    for method in ("OPTIONS", "GET", "POST"):
        response = await client.request(
            method, f"{router.url}/v1/models", headers=PREFLIGHT, json={"model": "m"}
        )
        assert cors_headers(response) == {}


async def test_a_preflight_of_a_page_that_may(start, client) -> None:
    router, replica = await start(PAGE, "https://other.example.com")
    response = await client.options(f"{router.url}/v1/chat/completions", headers=PREFLIGHT)
    assert response.status_code == 200
    assert cors_headers(response) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": "GET, HEAD, POST, DELETE",
        "access-control-allow-headers": "authorization, content-type",
        "access-control-expose-headers": "*",
        "access-control-max-age": "7200",
    }
    assert response.headers["vary"] == "Origin"
    assert replica.requests == []


async def test_answers_of_replicas_and_of_the_router(start, client) -> None:
    router, replica = await start(PAGE)
    page = {"Origin": PAGE}
    relayed = await client.post(f"{router.url}/v1/completions", json={"model": "m"}, headers=page)
    refused = await client.post(f"{router.url}/v1/completions", json={"model": "x"}, headers=page)
    listed = await client.get(f"{router.url}/v1/models", headers=page)
    assert [r.status_code for r in (relayed, refused, listed)] == [200, 404, 200]
    for response in (relayed, refused, listed):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["access-control-expose-headers"] == "*"
    assert replica.requests[0].header("origin") is None


async def test_other_pages_and_no_page(start, client) -> None:
    router, _ = await start(PAGE)
    other = await client.options(
        f"{router.url}/v1/completions", headers=PREFLIGHT | {"Origin": "https://evil.example.com"}
    )
    assert cors_headers(other) == {}
    assert other.headers["vary"] == "Origin"
    none = await client.get(f"{router.url}/v1/models")
    assert cors_headers(none) == {}


async def test_every_page(start, client) -> None:
    router, _ = await start("*")
    response = await client.get(f"{router.url}/v1/models", headers={"Origin": "null"})
    assert response.headers["access-control-allow-origin"] == "*"


async def test_header_names_that_are_none_are_not_repeated(start) -> None:
    router, _ = await start("*")
    answer = await router.exchange(
        b"OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\nOrigin: null\r\nConnection: close\r\n"
        b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: a<b>\r\n\r\n"
    )
    assert b"200 OK" in answer
    assert b"Allow-Headers" not in answer
