"""Endpoint pickers of several workers: each serves gateways, and all count together."""

import os
import signal

import grpc
import pytest
from support.routers.gateway_stream import GatewayStream, destination, gateway_channel

from kvasir.cli.local.ports import free_ports

pytestmark = pytest.mark.slow


async def in_flight(client, router) -> list[int]:
    response = await client.get(f"{router.admin_url}/debug/fleet")
    [model] = response.json()["models"]
    return [replica["in_flight"] for replica in model["replicas"]]


async def test_every_worker_serves_gateways(
    config, fleet_of_two, start_workers, client, until
) -> None:
    replicas = await fleet_of_two()
    [port] = free_ports(1)
    option = ("--endpoint-picker-port", str(port), "--policy", "least_load")
    router = await start_workers(config, 2, *option)
    places = {f"127.0.0.1:{replica.port}" for replica in replicas}

    # A connection of its own each, of which the kernel gives every worker some.
    open_streams = []
    for _ in range(12):
        made = gateway_channel(port)
        stream = GatewayStream(await made.__aenter__())
        assert destination(await stream.ask()) in places
        open_streams.append((made, stream))
    await until(lambda: _are(client, router, [6, 6]))
    for made, stream in open_streams[:6]:
        stream.call.cancel()
        await made.__aexit__(None, None, None)
    await until(lambda: _sum_is(client, router, 6))

    # A worker that dies takes its gateways' streams with it, and what they had in flight.
    for name in ("worker0", "worker1"):
        pid = router.pids()[name]
        os.kill(pid, signal.SIGKILL)
        await router.replaced(name, pid)
    await until(lambda: _sum_is(client, router, 0))
    for made, stream in open_streams[6:]:
        with pytest.raises(grpc.aio.AioRpcError):
            await _read_all(stream)
        await made.__aexit__(None, None, None)

    async def asks_again() -> bool:
        async with gateway_channel(port) as channel:
            try:
                return destination(await GatewayStream(channel).ask()) in places
            except grpc.aio.AioRpcError:
                return False

    await until(asks_again)
    router.router.signal(signal.SIGTERM)
    code, _, err = await router.router.ended()
    assert code == 0, err


async def _read_all(stream) -> None:
    while await stream.receive() is not None:
        pass


async def _are(client, router, counts) -> bool:
    return await in_flight(client, router) == counts


async def _sum_is(client, router, count) -> bool:
    return sum(await in_flight(client, router)) == count
