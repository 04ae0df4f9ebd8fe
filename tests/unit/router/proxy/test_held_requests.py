"""The queue, from a client's side."""

import asyncio

from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.options.router_settings import QueueLimits

BODY = {"model": "m", "messages": [], "max_tokens": 100}


async def held(exchange) -> None:
    """Answers when the test says so."""
    exchange.request.go = asyncio.Event()
    await exchange.request.go.wait()
    await exchange.json(200, {})


async def test_a_saturated_model_makes_requests_wait_and_serves_them_in_turn(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    replica = await start_replica(script=held)
    router = await start_router(
        [model_entry("m", replica)], max_in_flight=1, waiting=QueueLimits(requests=2)
    )
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    tasks = [
        asyncio.create_task(client.post(f"{router.url}/score", json=BODY | {"i": i}))
        for i in range(3)
    ]
    await eventually(lambda: queue.waiting(model) == 2)
    refused = await client.post(f"{router.url}/score", json=BODY)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    scaling = (await client.get(f"{router.admin_url}/scaling/m")).json()
    assert (scaling["queue"], scaling["concurrency"]) == (2, 3)
    assert await router.metric("waiting_requests", model="m") == 2
    for number in range(3):
        await eventually(lambda number=number: len(replica.requests) == number + 1)
        await eventually(lambda: hasattr(replica.requests[-1], "go"))
        replica.requests[-1].go.set()
    assert [(await task).status_code for task in tasks] == [200] * 3


async def test_a_model_without_replicas_holds_requests_until_one_comes(
    start_replica, start_router, model_entry, write_config, client, eventually
) -> None:
    router = await start_router([model_entry("m")], waiting=QueueLimits())
    task = asyncio.create_task(client.post(f"{router.url}/score", json=BODY))
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    await eventually(lambda: queue.waiting(model) == 1)
    scaling = (await client.get(f"{router.admin_url}/scaling/m")).json()
    assert (scaling["replicas"], scaling["queue"], scaling["concurrency"]) == (0, 1, 1)
    everything = (await client.get(f"{router.admin_url}/scaling")).json()
    assert everything == {"models": {"m": scaling}}
    replica = await start_replica()
    write_config(router.config, [model_entry("m", replica)])
    assert (await task).status_code == 200


async def test_patience_has_an_end(start_router, model_entry, client) -> None:
    router = await start_router([model_entry("m")], waiting=QueueLimits(hold=0.05))
    response = await client.post(f"{router.url}/score", json=BODY)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert await router.metric("queue_refusals_total", model="m", reason="timeout") == 1


async def test_a_held_stream_gets_comments_then_its_events(
    start_replica, start_router, model_entry, write_config, client, eventually
) -> None:
    async def answer(exchange) -> None:
        await exchange.start_events()
        await exchange.chunk(b'data: {"a":1}\n\ndata: [DONE]\n\n')
        await exchange.end()

    router = await start_router([model_entry("m")], waiting=QueueLimits(heartbeat=0.05))
    body = BODY | {"stream": True}
    async with client.stream("POST", f"{router.url}/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        parts = response.aiter_bytes()
        assert (await anext(parts)).startswith(b":")
        replica = await start_replica(script=answer)
        write_config(router.config, [model_entry("m", replica)])
        rest = b"".join([part async for part in parts])
    assert rest.endswith(b'data: {"a":1}\n\ndata: [DONE]\n\n')


async def test_a_model_may_be_waited_for_longer_than_others(
    start_router, model_entry, client
) -> None:
    router = await start_router([model_entry("m")], waiting=QueueLimits(hold=0.05))
    router.server.apply((ModelSpec("m", hold=30.0), ModelSpec("n", hold=0.0)))
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    task = asyncio.create_task(client.post(f"{router.url}/score", json=BODY))
    refused = await client.post(f"{router.url}/score", json={"model": "n"})
    assert refused.status_code == 503
    await asyncio.sleep(0.3)
    assert queue.waiting(model) == 1
    router.server.apply(())
    assert (await task).status_code == 503


async def test_who_waits_while_the_last_replica_goes_is_held(
    start_replica, start_router, model_entry, write_config, client, eventually
) -> None:
    go_on = asyncio.Event()

    async def answer(exchange) -> None:
        await go_on.wait()
        await exchange.json(200, {})

    replica = await start_replica(script=answer)
    waiting = QueueLimits(timeout=0.3, hold=30.0)
    router = await start_router([model_entry("m", replica)], waiting=waiting, max_in_flight=1)
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    first = asyncio.create_task(client.post(f"{router.url}/score", json=BODY))
    await eventually(lambda: router.in_flight() == 1)
    second = asyncio.create_task(client.post(f"{router.url}/score", json=BODY))
    await eventually(lambda: queue.waiting(model) == 1)
    router.server.apply((ModelSpec("m"),))
    await asyncio.sleep(0.6)
    assert queue.waiting(model) == 1, "there is no replica any more: it is held, not timed out"
    go_on.set()
    assert (await first).status_code == 200
    other = await start_replica()
    write_config(router.config, [model_entry("m", other)])
    assert (await second).status_code == 200


async def test_a_held_stream_that_waits_in_vain_ends_with_an_error_event(
    start_router, model_entry, client
) -> None:
    router = await start_router([model_entry("m")], waiting=QueueLimits(hold=0.3, heartbeat=0.05))
    body = BODY | {"stream": True}
    response = await client.post(f"{router.url}/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert b'"code":"model_not_ready"' in response.content.rsplit(b"data: ", 1)[1]


async def test_a_client_that_leaves_the_queue_is_forgotten(
    start_router, model_entry, post, eventually
) -> None:
    router = await start_router([model_entry("m")], waiting=QueueLimits())
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    _, writer = await router.connect()
    writer.write(post(b'{"model":"m"}'))
    await eventually(lambda: queue.waiting(model) == 1)
    writer.close()
    await eventually(lambda: queue.waiting(model) == 0)
    assert await router.metric("client_disconnects_total", model="m") == 1


async def test_engines_that_are_down_are_waited_for(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)], waiting=QueueLimits())
    assert (await client.post(f"{router.url}/score", json=BODY)).status_code == 200
    await replica.stop()
    tasks = [asyncio.create_task(client.post(f"{router.url}/score", json=BODY)) for _ in range(20)]
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    await eventually(lambda: queue.waiting(model) == 20)
    revived = await start_replica(port=replica.port)
    assert [(await task).status_code for task in tasks] == [200] * 20
    assert len(revived.requests) == 20
