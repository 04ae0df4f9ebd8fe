"""LoRA adapters of requests whose bytes a gateway carries: they go as those that the router relays
itself."""

import json

import pytest
from support.routers.gateway_stream import BUFFERED, DUPLEX, changed_headers, chat, destination

from kvasir_router.options.picker_settings import PickerSettings

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
