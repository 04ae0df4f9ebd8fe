"""What gateways and load balancers are told of the endpoint picker's health."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.routers.gateway_stream import gateway_channel

from kvasir_router.picker.picker_health import LIVENESS, MAX_BYTES, READINESS
from kvasir_router.picker.picker_server import SERVICE

pytestmark = pytest.mark.slow

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
OF_READINESS = ("", READINESS, SERVICE)
CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture
async def ask(start_picker):
    """ask(router): the stub of a health service, whose channel is closed after the test."""
    opened = []

    async def connect(router):
        channel = gateway_channel(router.server.picker.port)
        opened.append(channel)
        return health_pb2_grpc.HealthStub(await channel.__aenter__())

    yield connect
    for channel in opened:
        await channel.__aexit__(None, None, None)


def asked(name):
    return health_pb2.HealthCheckRequest(service=name)


async def told(watch) -> int:
    """The next status that a watch is told."""
    return (await asyncio.wait_for(watch.read(), 20)).status


async def statuses(stub) -> dict[str, int]:
    return {name: (await stub.Check(asked(name))).status for name in (*OF_READINESS, LIVENESS)}


async def test_names_of_the_protocol_serve_while_the_fleet_does(start_picker, ask) -> None:
    router, _ = await start_picker()
    assert await statuses(await ask(router)) == dict.fromkeys((*OF_READINESS, LIVENESS), SERVING)


async def test_a_picker_without_a_fleet_lives_but_does_not_serve(start_picker, ask) -> None:
    router, _ = await start_picker(0)
    assert await statuses(await ask(router)) == {
        **dict.fromkeys(OF_READINESS, NOT_SERVING),
        LIVENESS: SERVING,
    }


async def test_a_router_that_drains_does_not_serve_though_it_still_picks(start_picker, ask) -> None:
    router, _ = await start_picker()
    stub = await ask(router)
    router.server.gateway.stopping = True  # the pre-stop delay
    assert (await stub.Check(asked(READINESS))).status == NOT_SERVING
    assert (await stub.Check(asked(LIVENESS))).status == SERVING


async def test_who_watches_is_told_of_changes_and_does_not_hold_up_the_end(
    start_picker, ask
) -> None:
    router, _ = await start_picker()
    stub = await ask(router)
    watch = stub.Watch(asked(SERVICE))
    gateway = router.server.gateway
    assert await told(watch) == SERVING
    gateway.serves = False
    assert await told(watch) == NOT_SERVING
    gateway.serves = True
    assert await told(watch) == SERVING
    gateway.stopping = True
    assert await told(watch) == NOT_SERVING
    await router.server.picker.close()
    await asyncio.wait_for(router.server.picker.stop(), 20)
    with pytest.raises(grpc.aio.AioRpcError):
        await told(watch)


async def test_a_service_that_is_not_there_is_unknown(start_picker, ask) -> None:
    router, _ = await start_picker()
    stub = await ask(router)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(asked("kvasir.engine.v1.Engine"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(asked("kvasir.engine.v1.Engine"))
    assert await told(watch) == SERVICE_UNKNOWN
    watch.cancel()


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (b"\xff\xff\xff", "The message is no HealthCheckRequest"),
        (
            asked("x" * 2 * MAX_BYTES).SerializeToString(),
            "A HealthCheckRequest takes at most 1024 bytes, got 2051.",
        ),
    ],
)
async def test_what_is_no_check_is_refused_with_a_sentence(start_picker, message, sentence) -> None:
    router, _ = await start_picker()
    async with gateway_channel(router.server.picker.port) as channel:
        call = channel.unary_unary(CHECK, request_serializer=bytes)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(sentence)
