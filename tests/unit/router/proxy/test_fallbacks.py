"""Requests that another model answers, in front of real sockets."""

import asyncio
import json

import pytest

from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.wire.long_bodies.body_scan import SCANNED_BYTES

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
KEY = {"Authorization": "Bearer a-key-of-more-than-16-characters"}
HELD = QueueLimits(timeout=30, hold=30)


def body(path: str, model: str = "main", **more):
    prompt = {
        "/v1/completions": {"prompt": "hi"},
        "/v1/responses": {"input": "hi"},
    }.get(path, {"messages": [{"role": "user", "content": "hi"}]})
    return {"model": model, **prompt, **more}


def status(code: int):
    async def script(exchange) -> None:
        await exchange.json(code, {"error": {"message": "own"}})

    return script


async def served(exchange) -> None:
    content = json.loads(exchange.request.body)
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    if content.get("stream"):
        await exchange.start_events()
        await exchange.chunk(b'data: {"model": "%b"}\n\n' % content["model"].encode())
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.end()
    else:
        await exchange.json(200, {"model": content["model"], "usage": usage})


def model(name: str, *replicas, fallbacks=(), engine="vllm", **more):
    return {
        "name": name,
        "fallbacks": list(fallbacks),
        "replicas": [
            {"id": f"{name}-{i}", "url": each.url, "engine": engine}
            for i, each in enumerate(replicas)
        ],
        **more,
    }


@pytest.fixture
async def pair(start_replica):
    """A model's replica and its fallback's."""
    return await start_replica(script=served), await start_replica(script=served)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_model_that_is_full_is_answered_for(
    start_router, client, pair, path, stream
) -> None:
    main, other = pair
    main.script = status(429)
    router = await start_router([model("main", main, fallbacks=["other"]), model("other", other)])
    response = await client.post(router.url + path, json=body(path, stream=stream))
    assert response.status_code == 200
    assert response.headers["x-kvasir-model"] == "other"
    assert "other" in response.text
    assert json.loads(other.requests[0].body) == {
        **body(path, "other", stream=stream),
        **({"stream_options": {"include_usage": True}} if stream and "ompletions" in path else {}),
    }
    counted = await router.metric("fallbacks_total", model="main", fallback="other", reason="429")
    assert counted == 1
    assert await router.metric("requests_total", model="other", code="200") == 1
    assert await router.metric("requests_total", model="main") == 0


async def test_without_fallbacks_the_error_is_seen(start_router, client, pair) -> None:
    main, other = pair
    main.script = status(500)
    router = await start_router([model("main", main), model("other", other)])
    response = await client.post(f"{router.url}/v1/chat/completions", json=body(PATHS[0]))
    assert response.status_code == 500
    assert response.json() == {"error": {"message": "own"}}
    assert "x-kvasir-model" not in response.headers
    assert other.requests == []


async def test_the_own_replicas_are_asked_first(start_router, start_replica, client, pair) -> None:
    main, other = pair
    main.script = status(500)
    second = await start_replica(script=served)
    router = await start_router(
        [
            model("main", main, second, fallbacks=["other"], policy="round_robin"),
            model("other", other),
        ]
    )
    for _ in range(2):
        response = await client.post(f"{router.url}/v1/chat/completions", json=body(PATHS[0]))
        assert response.json()["model"] == "main"
        assert response.headers["x-kvasir-model"] == "main"
    assert other.requests == []


async def test_an_error_of_the_clients_own_is_passed_on(start_router, client, pair) -> None:
    main, other = pair
    main.script = status(400)
    router = await start_router([model("main", main, fallbacks=["other"]), model("other", other)])
    response = await client.post(f"{router.url}/v1/chat/completions", json=body(PATHS[0]))
    assert response.status_code == 400
    assert other.requests == []


async def test_a_model_without_a_replica_is_answered_for_at_once_and_still_wanted(
    start_router, client, pair
) -> None:
    _, other = pair
    router = await start_router(
        [model("main", fallbacks=["other"]), model("other", other)], waiting=HELD
    )
    response = await client.post(f"{router.url}/v1/chat/completions", json=body(PATHS[0]))
    assert response.headers["x-kvasir-model"] == "other"
    report = (await client.get(f"{router.admin_url}/scaling/main")).json()
    assert report["queue"] == 1  # so an autoscaler wakes it
    counted = await router.metric("fallbacks_total", model="main", reason="no_replica")
    assert counted == 1


async def test_a_dead_model_is_answered_for(start_router, client, pair) -> None:
    main, other = pair
    router = await start_router(
        [model("main", main, fallbacks=["other"]), model("other", other)], waiting=HELD
    )
    await main.stop()
    response = await client.post(f"{router.url}/v1/chat/completions", json=body(PATHS[0]))
    assert response.headers["x-kvasir-model"] == "other"


async def test_a_request_waits_no_longer_than_it_is_told_to(
    start_router, start_replica, client, pair
) -> None:
    main, other = pair
    go_on = asyncio.Event()

    async def slow(exchange) -> None:
        await go_on.wait()
        await served(exchange)

    main.script = slow
    router = await start_router(
        [model("main", main, fallbacks=["other"], fallback_after=0.1), model("other", other)],
        waiting=HELD,
        max_in_flight=1,
    )
    url = f"{router.url}/v1/chat/completions"
    first = asyncio.create_task(client.post(url, json=body(PATHS[0])))
    while not main.requests:  # noqa: ASYNC110 - the replica has no event
        await asyncio.sleep(0.005)
    second = await client.post(url, json=body(PATHS[0]))
    assert second.headers["x-kvasir-model"] == "other"
    go_on.set()
    assert (await first).headers["x-kvasir-model"] == "main"
    assert await router.metric("fallbacks_total", reason="queue_time") == 1
    assert router.in_flight() == 0


async def test_a_stream_that_has_begun_stays(start_router, client, pair) -> None:
    main, other = pair

    async def breaks(exchange) -> None:
        await exchange.start_events()
        await exchange.chunk(b"data: 1\n\n")
        exchange.reset()

    main.script = breaks
    router = await start_router([model("main", main, fallbacks=["other"]), model("other", other)])
    response = await client.post(
        f"{router.url}/v1/chat/completions", json=body(PATHS[0], stream=True)
    )
    assert "replica_failed" in response.text
    assert other.requests == []


async def test_fallbacks_are_tried_in_order_and_no_circle_is_one(
    start_router, start_replica, client, pair
) -> None:
    main, other = pair
    main.script = other.script = status(503)
    last = await start_replica(script=status(502))
    router = await start_router(
        [
            model("main", main, fallbacks=["other", "main", "last", "other"]),
            model("other", other, fallbacks=["main"]),
            model("last", last, fallbacks=["main", "last"]),
        ]
    )
    response = await client.post(f"{router.url}/v1/chat/completions", json=body(PATHS[0]))
    assert response.status_code == 502
    assert response.headers["x-kvasir-model"] == "last"
    assert [len(each.requests) for each in (main, other, last)] == [1, 1, 1]


async def test_a_key_goes_nowhere_that_it_may_not(start_router, client, pair, tmp_path) -> None:
    main, other = pair
    main.script = status(503)
    keys = tmp_path / "keys.yaml"
    key = KEY["Authorization"].removeprefix("Bearer ")
    text = f'keys: [{{id: k, key: "{key}", tenant: a, models: [main], requests_per_minute: 2}}]\n'
    keys.write_text(text)
    router = await start_router(
        [model("main", main, fallbacks=["other"]), model("other", other)], keys_file=keys
    )
    url = f"{router.url}/v1/chat/completions"
    response = await client.post(url, json=body(PATHS[0]), headers=KEY)
    assert response.status_code == 503
    assert other.requests == []


async def test_a_key_pays_once_and_for_what_the_fallback_used(
    start_router, client, pair, tmp_path
) -> None:
    main, other = pair
    main.script = status(503)
    keys = tmp_path / "keys.yaml"
    key = KEY["Authorization"].removeprefix("Bearer ")
    keys.write_text(f'keys: [{{id: k, key: "{key}", tenant: a, requests_per_minute: 2}}]\n')
    router = await start_router(
        [model("main", main, fallbacks=["other"]), model("other", other)], keys_file=keys
    )
    url = f"{router.url}/v1/chat/completions"
    codes = [
        (await client.post(url, json=body(PATHS[0]), headers=KEY)).status_code for _ in range(3)
    ]
    assert codes == [200, 200, 429]
    assert await router.metric("tenant_tokens_total", tenant="a", kind="completion") == 4
    assert await router.metric("tokens_total", model="other", kind="completion") == 4
    assert await router.metric("tokens_total", model="main", kind="completion") == 0


@pytest.mark.parametrize("size", [10, 2 * SCANNED_BYTES])
async def test_a_fallback_gets_the_whole_body_under_its_name(
    start_router, client, pair, size
) -> None:
    main, other = pair
    main.script = status(503)
    router = await start_router(
        [
            model("main", main, fallbacks=["alias"]),
            model("a-much-longer-name-than-that", other, aliases=["alias"]),
        ]
    )
    given = {"messages": [{"role": "user", "content": "x" * size}], "model": "main"}
    await client.post(f"{router.url}/v1/chat/completions", json=given)
    sent = json.loads(other.requests[0].body)
    assert sent == {**given, "model": "a-much-longer-name-than-that"}


async def test_a_deadline_is_that_of_the_whole_request(start_router, client, pair) -> None:
    main, other = pair
    main.script = status(503)
    never = asyncio.Event()

    async def hangs(exchange) -> None:
        await never.wait()

    other.script = hangs
    router = await start_router([model("main", main, fallbacks=["other"]), model("other", other)])
    response = await client.post(
        f"{router.url}/v1/chat/completions",
        json=body(PATHS[0]),
        headers={"x-request-timeout": "0.2"},
    )
    assert response.status_code == 504
    assert router.in_flight() == 0


async def test_fallbacks_that_do_not_serve_are_passed_over_and_the_model_is_waited_for(
    start_router, client, pair, eventually
) -> None:
    main, _ = pair
    main.ready = 503
    router = await start_router(
        [model("main", main, fallbacks=["other"], engine="kvasir"), model("other")],
        waiting=HELD,
        wait=False,
    )
    url = f"{router.url}/v1/chat/completions"
    held = asyncio.create_task(client.post(url, json=body(PATHS[0])))
    queue = router.server.gateway.queue
    await eventually(lambda: queue.waiting(router.server.fleet.models["main"]) == 1)
    main.ready = 200
    assert (await held).json()["model"] == "main"


async def test_a_request_that_ends_engines_ends_two_at_most(start_router, client, pair) -> None:
    main, other = pair

    async def dies(exchange) -> None:
        exchange.reset()

    main.script = other.script = dies
    router = await start_router([model("main", main, fallbacks=["other"]), model("other", other)])
    response = await client.post(f"{router.url}/v1/chat/completions", json=body(PATHS[0]))
    assert response.json()["error"]["code"] == "poison_request"
    assert [len(each.requests) for each in pair] == [1, 1]


async def test_a_model_whose_breaker_is_open_is_not_asked_but_for_a_trial(
    start_router, client, pair
) -> None:
    main, other = pair
    main.script = status(500)
    router = await start_router([model("main", main, fallbacks=["other"]), model("other", other)])
    url = f"{router.url}/v1/chat/completions"
    for _ in range(8):
        response = await client.post(url, json=body(PATHS[0]))
        assert response.headers["x-kvasir-model"] == "other"
    assert len(main.requests) == 5
    assert await router.metric("fallbacks_total", model="main", reason="no_replica") == 3


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
async def test_tokens_are_the_models_own(start_router, client, pair, path) -> None:
    main, other = pair
    main.script = status(503)
    router = await start_router([model("main", main, fallbacks=["other"]), model("other", other)])
    response = await client.post(router.url + path, json=body(path))
    assert response.status_code == 503
    assert other.requests == []
