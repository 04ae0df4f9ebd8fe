"""LoRA adapters of requests whose bytes a gateway carries: they go as those that the router relays
itself."""

import json

import pytest
from support.routers.gateway_stream import BUFFERED, DUPLEX, changed_headers, chat, destination

from kvasir_router.options.picker_settings import PickerSettings
from kvasir_router.options.router_settings import QueueLimits

pytestmark = pytest.mark.slow


def address(replica) -> str:
    return f"127.0.0.1:{replica.port}"


def entry(*replicas, engines=("sglang",), **fields):
    """A model whose replicas, of these kinds of engine, hold the adapter `sql`."""
    return {
        "name": "base",
        "adapters": ["sql", "chat"],
        "replicas": [
            {"id": f"r{i}", "url": each.url, "engine": engine, "adapters": ["sql"]}
            for i, (each, engine) in enumerate(zip(replicas, engines, strict=True))
        ],
        **fields,
    }


async def body_of(stream, reply) -> bytes:
    if stream.mode == BUFFERED:
        return reply.request_body.response.body_mutation.body
    return await stream.given_back()


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
@pytest.mark.parametrize(("engine", "name"), [("sglang", "base:sql"), ("vllm", "sql")])
async def test_the_engine_is_asked_for_the_adapter(
    start_replica, start_picker, gateway, mode, engine, name
) -> None:
    replica = await start_replica()
    router, _ = await start_picker(0, models=[entry(replica, engines=[engine])])
    stream = await gateway(router, mode)
    reply = await stream.ask(chat("sql", stream=True))
    body = await body_of(stream, reply)
    assert json.loads(body)["model"] == name
    assert changed_headers(reply)["content-length"] == str(len(body))
    assert ("stream_options" in json.loads(body)) == (mode == DUPLEX)
    stream.call.cancel()


async def test_further_endpoints_take_the_same_body(start_replica, start_picker, gateway) -> None:
    replicas = [await start_replica() for _ in range(4)]
    engines = ("sglang", "vllm", "sglang", "vllm")
    router, _ = await start_picker(
        0, models=[entry(*replicas, engines=engines)], picker=PickerSettings(endpoints=4)
    )
    for _ in range(2):
        stream = await gateway(router)
        reply = await stream.ask(chat("sql"))
        told = set(destination(reply).split(","))
        name = json.loads(await stream.given_back())["model"]
        alike = slice(0, None, 2) if name == "base:sql" else slice(1, None, 2)
        assert told == set(map(address, replicas[alike]))
        stream.call.cancel()
    stream = await gateway(router)
    assert len(destination(await stream.ask(chat("base"))).split(",")) == 4
    stream.call.cancel()


async def test_no_field_but_model_chooses_an_adapter(start_replica, start_picker, gateway) -> None:
    router, _ = await start_picker(0, models=[entry(await start_replica())])
    reply = await (await gateway(router)).ask(chat("base", lora_path="sql"))
    answer = reply.immediate_response
    assert answer.status.code == 400
    assert json.loads(answer.body)["error"]["param"] == "lora_path"


def refusal(reply) -> tuple[int, str, str]:
    """Status, code and message of an answer of the router's own."""
    answer = reply.immediate_response
    error = json.loads(answer.body)["error"]
    return answer.status.code, error["code"], error["message"]


async def test_one_that_nobody_holds_is_refused_as_the_relay_does(
    start_replica, start_picker, gateway, client
) -> None:
    router, _ = await start_picker(0, models=[entry(await start_replica())])
    relayed = await client.post(f"{router.url}/v1/chat/completions", content=chat("chat"))
    error = relayed.json()["error"]
    assert (relayed.status_code, error["code"]) == (503, "adapter_not_loaded")
    reply = await (await gateway(router)).ask(chat("chat"))
    assert refusal(reply) == (503, "adapter_not_loaded", error["message"])
    assert changed_headers(reply)["retry-after"] == relayed.headers["retry-after"]


async def test_one_that_goes_while_it_is_waited_for(
    start_replica, start_picker, gateway, eventually, write_config
) -> None:
    before = entry(await start_replica())
    waiting = QueueLimits(timeout=0.5, hold=30)
    router, _ = await start_picker(0, models=[before], max_in_flight=1, waiting=waiting)
    first, second = await gateway(router), await gateway(router)
    await first.ask(chat("sql"))
    await second.head()
    await second.body(chat("sql"))
    model = router.server.fleet.models["base"]
    await eventually(lambda: router.server.gateway.queue.waiting(model) == 1)
    [replica] = before["replicas"]
    write_config(router.config, [{**before, "replicas": [{**replica, "adapters": []}]}])
    assert refusal(await second.receive())[:2] == (503, "adapter_not_loaded")
    first.call.cancel()


async def test_one_that_only_others_than_the_gateways_hold(
    start_replica, start_picker, gateway
) -> None:
    one, other = await start_replica(), await start_replica()
    model = entry(one, other, engines=("vllm", "vllm"))
    model["replicas"][1]["adapters"] = []
    router, _ = await start_picker(0, models=[model])
    reply = await (await gateway(router)).ask(chat("sql"), subset=[address(other)])
    assert refusal(reply)[:2] == (503, "adapter_not_loaded")
