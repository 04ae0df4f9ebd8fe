"""Routers in front of scripted replicas."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.broken_streams import BODY, PATH
from support.redis_server import redis_server
from support.routers.scripted_replies import after, ok, reset, silent, status

from kvasir_router.discovery.specs import EngineKind, ModelSpec, ReplicaSpec
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.model import Model
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.wire.upstream_pool import ConnectionPool

__all__ = ["redis_server"]


@pytest.fixture
async def make_choice() -> Callable[..., tuple[Model, Choice]]:
    """make_choice(replica_id="r0", engine=KVASIR): the model `m` with one replica at
    10.0.0.1:8000, and the choice of that."""

    def made(
        replica_id: str = "r0", engine: EngineKind = EngineKind.KVASIR
    ) -> tuple[Model, Choice]:
        fleet = Fleet(
            lambda spec: LeastLoad(),
            lambda spec: ConnectionPool(spec.host, spec.port, connect_timeout=1, idle_timeout=1),
            10,
        )
        spec = ReplicaSpec(replica_id, "10.0.0.1", 8000, engine=engine)
        fleet.apply((ModelSpec("m", replicas=(spec,)),))
        [(model, replica)] = fleet.replicas()
        return model, Choice(replica)

    return made


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
