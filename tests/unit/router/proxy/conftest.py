"""Routers in front of scripted replicas."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.broken_streams import BODY, PATH
from support.redis_server import redis_server
from support.routers.scripted_replies import after, ok, reset, silent, status

__all__ = ["redis_server"]


@pytest.fixture
def scripts() -> SimpleNamespace:
    """What a replica may do with a request."""
    return SimpleNamespace(ok=ok, reset=reset, silent=silent, status=status, after=after)


@pytest.fixture
def two(start_replica, start_router, model_entry):
    """A router with two replicas that run these scripts."""

    async def start(first: Any, second: Any, **options: Any) -> Any:
        a, b = await start_replica(script=first), await start_replica(script=second)
        return await start_router([model_entry("m", a, b)], **options), a, b

    return start


@pytest.fixture
def one(start_replica, start_router, model_entry):
    """A router with one replica, which runs this script or tells its name."""

    async def start(script: Any = None, **options: Any) -> Any:
        replica = await start_replica(**({"script": script} if script else {}))
        return await start_router([model_entry("m", replica)], **options), replica

    return start


@pytest.fixture
def ask(client):
    """Post the streamed request to a router; return the whole answer."""

    async def post(router: Any, **fields: Any) -> str:
        response = await client.post(router.url + PATH, json={**BODY, **fields})
        assert response.status_code == 200
        text: str = response.text
        return text

    return post


@pytest.fixture
def routed(two):
    """Start a router of engines that know it, which takes them in turn."""

    async def start(first: Any, second: Any, **options: Any) -> Any:
        options = {"policy": "round_robin", "fleet_secret": "s", **options}
        return await two(first, second, **options)

    return start


@pytest.fixture
def router_bytes(post):
    """Head and body of an answer on a connection that is closed after it."""

    async def exchange(router: Any, body: bytes, *lines: bytes) -> tuple[bytes, bytes]:
        answer = await router.exchange(post(body, b"Connection: close", *lines))
        head, content = answer.split(b"\r\n\r\n", 1)
        return head, content

    return exchange
