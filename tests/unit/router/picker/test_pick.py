"""Picks: the queue, subsets, and every abrupt end, over gRPC."""

import json
from pathlib import Path

import grpc
import pytest
from support.certificates import self_signed
from support.routers.gateway_stream import (
    BUFFERED,
    DUPLEX,
    GatewayStream,
    changed_headers,
    chat,
    destination,
    gateway_channel,
)

from kvasir_router.fleet.replica import Health
from kvasir_router.options.picker_settings import PickerSettings
from kvasir_router.options.router_settings import QueueLimits, Timeouts
from kvasir_router.wire.http_request import Limits

pytestmark = pytest.mark.slow


def address(replica):
    return f"127.0.0.1:{replica.port}"


def refusal(reply):
    """Status and code of an answer of the router's own."""
    answer = reply.immediate_response
    return answer.status.code, json.loads(answer.body)["error"]["code"]


async def test_the_policy_and_the_loads_are_those_of_all_requests(
    start_picker, gateway, client
) -> None:
    router, replicas = await start_picker(2)
    prompt = "the same conversation " * 200
    messages = [{"role": "user", "content": prompt}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    await client.post(f"{router.url}/v1/chat/completions", content=body)
    [first] = [each for each in replicas if each.requests]
    for _ in range(3):
        stream = await gateway(router)
        reply = await stream.ask(body)
        assert destination(reply) == address(first), "the one that has its prompt"
        stream.call.cancel()


@pytest.mark.parametrize("stage", ["asked", "answered", "half", "closed"])
@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
async def test_a_gateway_that_breaks_off_leaves_nothing(
    start_picker, gateway, eventually, mode, stage
) -> None:
    router, _ = await start_picker()
    stream = await gateway(router, mode)
    await stream.ask()
    assert router.in_flight() == 1
    if stage != "asked":
        await stream.answer(kind="text/event-stream")
    if stage == "half":
        await stream.answer_body(b"data: {", last=False)
    if stage == "closed":
        await stream.end()
    else:
        stream.call.cancel()
    await eventually(lambda: router.in_flight() == 0)
    assert await router.metric("requests_total", model="m", code="499") == 1
    assert router.replica("m", "r0").load.credit == 0
    await eventually(lambda: not router.server.gateway.clients.connections)


async def test_a_gateway_that_vanishes_leaves_nothing(start_picker, eventually) -> None:
    router, _ = await start_picker()
    async with gateway_channel(router.server.picker.port) as channel:
        streams = [GatewayStream(channel) for _ in range(5)]
        for stream in streams:
            await stream.ask()
        assert router.in_flight() == 5
    await eventually(lambda: router.in_flight() == 0)


async def test_requests_wait_for_room_in_the_queue_of_all(
    start_picker, gateway, client, eventually
) -> None:
    router, [replica] = await start_picker(max_in_flight=1, waiting=QueueLimits(requests=4))
    first, second = await gateway(router), await gateway(router)
    await first.ask()
    await second.head()
    await second.body(chat())
    model = router.server.fleet.models["m"]
    await eventually(lambda: router.server.gateway.queue.waiting(model) == 1)
    await first.given_back()
    await first.answer(last=True)
    assert destination(await second.receive()) == address(replica)
    second.call.cancel()


async def test_one_that_waits_and_leaves(start_picker, gateway, eventually) -> None:
    router, _ = await start_picker(max_in_flight=1, waiting=QueueLimits(requests=4))
    first, second = await gateway(router), await gateway(router)
    await first.ask()
    await second.head()
    await second.body(chat())
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    await eventually(lambda: queue.waiting(model) == 1)
    second.call.cancel()
    await eventually(lambda: queue.waiting(model) == 0)
    first.call.cancel()
    await eventually(lambda: router.in_flight() == 0)


async def test_a_full_queue_says_when_to_come_again(start_picker, gateway) -> None:
    router, _ = await start_picker(max_in_flight=1)
    first, second = await gateway(router), await gateway(router)
    await first.ask()
    reply = await second.ask()
    assert refusal(reply) == (429, "overloaded")
    assert int(changed_headers(reply)["retry-after"]) >= 1
    first.call.cancel()


async def test_no_replica(start_picker, gateway, eventually) -> None:
    router, [replica] = await start_picker()
    replica.ready = 503
    await eventually(lambda: router.replica("m", "r0").health is not Health.READY)
    reply = await (await gateway(router)).ask()
    assert refusal(reply) == (503, "model_not_ready")
    assert changed_headers(reply)["retry-after"]


async def test_only_what_the_gateway_offers(start_picker, gateway) -> None:
    router, replicas = await start_picker(3, max_in_flight=1)
    offered = [address(replicas[1]), "10.9.9.9:8000"]
    stream = await gateway(router)
    assert destination(await stream.ask(subset=offered)) == offered[0]
    # What it offers is full now, and others are not for it.
    assert refusal(await (await gateway(router)).ask(subset=offered)) == (429, "overloaded")
    for nothing in ([], ["10.9.9.9:8000"]):
        reply = await (await gateway(router)).ask(subset=nothing)
        assert refusal(reply) == (503, "model_not_ready")
    assert router.in_flight() == 1
    stream.call.cancel()


@pytest.mark.parametrize(
    "picker", [PickerSettings(namespace="team-a"), PickerSettings(target_port=1)]
)
async def test_only_engines_of_the_pool(start_picker, gateway, client, picker) -> None:
    router, _ = await start_picker(picker=picker)
    reply = await (await gateway(router)).ask()
    assert refusal(reply) == (503, "model_not_ready")
    # Its own clients reach them.
    answer = await client.post(f"{router.url}/v1/chat/completions", content=chat())
    assert answer.status_code == 200


async def test_another_model_answers(start_replica, start_picker, gateway, eventually) -> None:
    one, other = await start_replica(ready=503), await start_replica()
    models = [
        {"name": "m", "replicas": [{"id": "r0", "url": one.url}], "fallbacks": ["n"]},
        {"name": "n", "replicas": [{"id": "r0", "url": other.url}]},
    ]
    router, _ = await start_picker(0, models=models, wait=False)
    await eventually(lambda: router.replica("n", "r0").health is Health.READY)
    stream = await gateway(router, BUFFERED)
    reply = await stream.ask()
    assert destination(reply) == address(other)
    body = reply.request_body.response.body_mutation.body
    assert json.loads(body)["model"] == "n"
    stream.call.cancel()


@pytest.mark.parametrize(("status", "reason"), [(500, "500"), (502, "502")])
async def test_a_fault_counts_for_the_replica(start_picker, gateway, status, reason) -> None:
    router, _ = await start_picker()
    stream = await gateway(router)
    await stream.ask()
    await stream.given_back()
    await stream.answer(status, last=True)
    assert router.replica("m", "r0").failures[reason] == 1
    assert router.in_flight() == 0


async def test_bounds(start_picker, gateway) -> None:
    router, _ = await start_picker(
        picker=PickerSettings(message_bytes=64 * 1024, streams=1),
        limits=Limits(body_bytes=100_000, headers=10),
    )
    stream = await gateway(router)
    await stream.head()
    await stream.body(b"x" * 60_000, last=False)
    await stream.body(b"x" * 60_000, last=False)
    assert refusal(await stream.receive()) == (413, "request_too_large")
    assert await stream.receive() is None

    stream = await gateway(router)
    await stream.head({f"x-{i}": "1" for i in range(20)})
    assert refusal(await stream.receive()) == (431, "bad_request")
    await stream.receive()

    stream = await gateway(router, BUFFERED)
    await stream.ask()
    another = await gateway(router)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await another.ask()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await stream.body(b"x" * 70_000)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stream.receive()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_headers_that_would_be_two_requests(start_picker, gateway) -> None:
    router, _ = await start_picker()
    for name, value in (("x-a", "1\r\nHost: other"), ("x-b\r\nx", "1"), ("x-c", "a\0b")):
        stream = await gateway(router)
        await stream.head({name: value})
        assert refusal(await stream.receive()) == (400, "bad_request")


async def test_a_request_that_does_not_come(start_picker, gateway) -> None:
    router, _ = await start_picker(timeouts=Timeouts(body=0.1, header=0.1))
    for has_head in (False, True):
        stream = await gateway(router)
        if has_head:
            await stream.head()
            await stream.body(b"{", last=False)
        assert refusal(await stream.receive()) == (408, "timeout")
        assert await stream.receive() is None


async def test_its_own_deadline(start_picker, gateway) -> None:
    router, _ = await start_picker(max_in_flight=1, waiting=QueueLimits(requests=4))
    first, second = await gateway(router), await gateway(router)
    await first.ask()
    reply = await second.ask(headers={"x-request-timeout": "0.05"})
    assert refusal(reply) == (504, "deadline_exceeded")
    first.call.cancel()


async def test_what_is_under_way_may_end_when_the_router_stops(
    start_picker, gateway, eventually
) -> None:
    router, _ = await start_picker()
    stream = await gateway(router)
    await stream.ask()
    await stream.given_back()
    await router.server.picker.close()
    another = await gateway(router)
    with pytest.raises(grpc.aio.AioRpcError):
        await another.ask()
    assert router.in_flight() == 1
    await stream.answer()
    await stream.answer_body(b"{}")
    assert router.in_flight() == 0


async def test_what_is_left_after_the_drain_is_ended(start_picker, gateway, eventually) -> None:
    router, _ = await start_picker()
    stream = await gateway(router)
    await stream.ask()
    await stream.given_back()
    await router.server.gateway.drain(0.0)
    assert router.in_flight() == 0
    assert await stream.receive() is None


async def test_tls_with_a_certificate_that_is_replaced(start_picker, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, "picker")
    router, [replica] = await start_picker(picker=PickerSettings(cert=cert, key=key))
    port = router.server.picker.port

    async def ask(trusted: bytes) -> str:
        made = grpc.ssl_channel_credentials(trusted)
        async with gateway_channel(port, made) as channel:
            return destination(await GatewayStream(channel).ask())

    first = cert.read_bytes()
    assert await ask(first) == address(replica)
    with pytest.raises(grpc.aio.AioRpcError):
        async with gateway_channel(port) as channel:
            await GatewayStream(channel).ask()

    new, new_key = self_signed(tmp_path, "new")
    new.replace(cert)
    key.unlink()
    assert await ask(first) == address(replica), "half a pair is no pair"
    new_key.replace(key)
    assert await ask(cert.read_bytes()) == address(replica)
    assert router.server.metrics.stale["picker certificate"] is False
