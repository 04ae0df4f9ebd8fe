"""Replicas that a gateway can reach."""

import pytest

from kvasir_router.discovery.specs import ReplicaSpec, Upstream
from kvasir_router.fleet.replica import Replica
from kvasir_router.picker.pool import Pool, endpoint_of_replica, endpoints_in
from kvasir_router.wire.upstream_pool import ConnectionPool


def replica(host="10.0.0.1", port=8000, **spec) -> Replica:
    pool = ConnectionPool(host, port, connect_timeout=1.0, idle_timeout=1.0)
    return Replica(ReplicaSpec("r", host, port, **spec), pool, 1, lambda: None)


@pytest.mark.parametrize(
    ("spec", "pool", "has"),
    [
        ({}, Pool(), True),
        ({"host": "2001:db8::1"}, Pool(), True),
        ({"host": "engine.example.com"}, Pool(), False),
        ({"upstream": Upstream()}, Pool(), False),
        ({"namespace": "a"}, Pool("a", 8000), True),
        ({"namespace": "b"}, Pool("a"), False),
        ({}, Pool("a"), False),
        ({"port": 8080}, Pool(None, 8000), False),
    ],
)
async def test_pools(spec, pool, has) -> None:
    assert pool.has(replica(**spec)) is has


async def test_endpoints_are_written_as_gateways_do() -> None:
    assert endpoint_of_replica(replica()) == "10.0.0.1:8000"
    assert endpoint_of_replica(replica("2001:db8::1")) == "[2001:db8::1]:8000"
    assert endpoints_in(["a:1, b:2", "", "c:3"]) == {"a:1", "b:2", "c:3"}
