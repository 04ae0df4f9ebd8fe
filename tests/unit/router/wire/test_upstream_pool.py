"""The connections to one replica: kept, bounded, opened by name."""

import asyncio
import socket
import time
from typing import Any

import httpx
import pytest

from kvasir_router.progress import ProgressWatch
from kvasir_router.wire.upstream import ResponseHead
from kvasir_router.wire.upstream_pool import ConnectionPool, fetch


@pytest.fixture
async def pool(start_replica):
    replica = await start_replica()
    made = ConnectionPool("127.0.0.1", replica.port, connect_timeout=5, idle_timeout=60, max_idle=2)
    yield made
    made.close()


class Silent:
    """Listen without a word."""

    def response_started(self, head: ResponseHead) -> None:
        pass

    def response_data(self, data: bytes, last: bool) -> None:
        pass

    def response_broken(self, reason: str) -> None:
        pass


def options_of(connection: Any) -> int:
    sock = connection._transport.get_extra_info("socket")
    return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


async def test_the_last_one_used_is_taken_first_and_few_wait(pool) -> None:
    first, second, third = [await pool.connect() for _ in range(3)]
    for connection in (first, second, third):
        pool.release(connection)
    assert not first.usable
    assert pool.take_idle() is third
    assert pool.take_idle() is second
    assert pool.take_idle() is None


async def test_nothing_is_held_back_by_the_kernel(pool) -> None:
    assert options_of(await pool.connect()) == 1


async def test_time_in_which_the_process_stood_still_is_not_the_replicas(start_replica) -> None:
    replica, limit = await start_replica(), ProgressWatch().limit
    pool = ConnectionPool(
        "127.0.0.1", replica.port, connect_timeout=0.4, idle_timeout=60, limit=limit
    )
    connecting = asyncio.create_task(pool.connect())
    await asyncio.sleep(0)
    time.sleep(1.0)  # noqa: ASYNC251 - the loop is what stands still
    (await connecting).abort()


async def test_old_connections_are_not_used(pool) -> None:
    connections = [await pool.connect() for _ in range(2)]
    for connection in connections:
        pool.release(connection)
        connection.idle_since -= 61
    assert pool.take_idle() is None
    assert not any(connection.usable for connection in connections)


async def test_a_connection_that_is_lost_while_idle_is_forgotten(start_replica, eventually) -> None:
    replica = await start_replica()
    pool = ConnectionPool("127.0.0.1", replica.port, connect_timeout=5, idle_timeout=60)
    connection = await pool.connect()
    pool.release(connection)
    await replica.stop()
    await eventually(lambda: not connection.usable)
    assert pool.take_idle() is None


async def test_a_replica_hears_of_an_end_before_the_loop_s_turn_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pool = ConnectionPool("127.0.0.1", port, connect_timeout=5, idle_timeout=60)
        connection = await pool.connect()
        accepted, _ = server.accept()
    with accepted:
        accepted.settimeout(5)
        connection.send(Silent(), b"POST / HTTP/1.1\r\n\r\n", b"")
        await asyncio.sleep(0.05)
        connection.abort()
        # Nothing is awaited: the loop does not turn
        assert accepted.recv(1000).startswith(b"POST")
        assert accepted.recv(1000) == b""


async def test_what_is_in_use_when_the_pool_closes_is_closed_afterwards(pool) -> None:
    idle, used = [await pool.connect() for _ in range(2)]
    pool.release(idle)
    pool.close()
    assert not idle.usable
    assert used.usable
    pool.release(used)
    assert not used.usable


async def test_a_replica_is_found_by_name(start_replica) -> None:
    replica = await start_replica()
    pool = ConnectionPool("localhost", replica.port, connect_timeout=5, idle_timeout=60)
    assert (await fetch(pool, "/ready"))[0] == 200
    assert replica.probes[0].header("host") == f"localhost:{replica.port}"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300])
async def test_a_name_that_does_not_exist_is_an_os_error(host: str) -> None:
    pool = ConnectionPool(host, 80, connect_timeout=5, idle_timeout=60)
    with pytest.raises(OSError):
        await pool.connect()


async def test_a_replica_never_has_more_connections_than_requests_it_may(
    start_replica, start_router, model_entry
) -> None:
    async def slow(exchange: Any) -> None:
        await asyncio.sleep(0.05)
        await exchange.json(200, {})

    replica = await start_replica(script=slow)
    router = await start_router([model_entry("m", replica)], max_in_flight=4)
    before = replica.connections
    limits = httpx.Limits(max_connections=40)
    async with httpx.AsyncClient(limits=limits, timeout=20) as client:
        url = f"{router.url}/v1/completions"
        sent = [client.post(url, json={"model": "m"}) for _ in range(40)]
        statuses = [response.status_code for response in await asyncio.gather(*sent)]
    assert set(statuses) == {200, 429}
    open_now = len(replica._writers)
    assert len(replica.requests) == statuses.count(200)
    probes = len(replica.probes)
    assert replica.connections - before - probes <= 4
    assert open_now <= 4 + 2


async def test_one_that_has_become_old_is_used_no_more(start_replica) -> None:
    replica = await start_replica()
    pool = ConnectionPool(
        "127.0.0.1", replica.port, connect_timeout=5, idle_timeout=60, max_age=0.0
    )
    connection = await pool.connect()
    await asyncio.sleep(0.01)
    pool.release(connection)
    assert not connection.usable
    assert pool.take_idle() is None
    pool.close()
