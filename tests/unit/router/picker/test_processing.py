"""What a gateway is told, message by message, in both modes of bodies."""

import json

import grpc
import pytest
from support.routers.gateway_stream import (
    BUFFERED,
    DUPLEX,
    changed_headers,
    chat,
    destination,
    removed_headers,
)

from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb
from kvasir_router.options.picker_settings import PickerSettings
from kvasir_router.picker.replies import CHUNK_BYTES

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
ANSWER = json.dumps({"choices": [], "usage": USAGE}).encode()


def address(replica):
    return f"127.0.0.1:{replica.port}"


async def answer_parts(stream, *parts: bytes) -> bytes:
    """The answer's body as it comes back, when these parts of it were told."""
    for part in parts:
        await stream.send(response_body=pb.HttpBody(body=part, end_of_stream=part is parts[-1]))
    got, ends = b"", False
    while not ends:
        part = (await stream.receive()).response_body.response.body_mutation.streamed_response
        got, ends = got + part.body, part.end_of_stream
    return got


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
async def test_a_request_and_its_answer(start_picker, gateway, eventually, mode) -> None:
    router, [replica] = await start_picker()
    stream = await gateway(router, mode)
    reply = await stream.ask()
    assert destination(reply) == address(replica)
    assert changed_headers(reply)["content-length"] == str(len(chat()))
    if mode == DUPLEX:
        assert reply.request_headers.response.clear_route_cache
        assert await stream.given_back() == chat()
    else:
        assert reply.request_body.response.body_mutation.body == chat()
    assert router.in_flight() == 1

    told = await stream.answer()
    assert told.WhichOneof("response") == "response_headers"
    part = await stream.answer_body(ANSWER[:10], last=False)
    rest = await stream.answer_body(ANSWER[10:])
    if mode == DUPLEX:
        back = [
            each.response_body.response.body_mutation.streamed_response for each in (part, rest)
        ]
        assert b"".join(each.body for each in back) == ANSWER
        assert [each.end_of_stream for each in back] == [False, True]
    else:
        assert not part.response_body.response.HasField("body_mutation")
    await eventually(lambda: router.in_flight() == 0)
    await stream.end()
    assert await stream.receive() is None
    assert await router.metric("requests_total", model="m", code="200") == 1
    assert await router.metric("tokens_total", model="m", kind="completion") == 5
    await eventually(lambda: not router.server.gateway.clients.connections)
    assert router.server.gateway.bodies.used == 0


async def test_a_stream_with_usage(start_picker, gateway, eventually) -> None:
    router, _ = await start_picker()
    stream = await gateway(router)
    body = chat(stream=True, stream_options={"include_usage": True})
    await stream.ask(body)
    assert await stream.given_back() == body
    await stream.answer(kind="text/event-stream; charset=utf-8")
    last = b'data: {"choices":[],"usage":%b}\n\ndata: [DONE]\n\n' % json.dumps(USAGE).encode()
    first = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    assert await answer_parts(stream, first[:20], first[20:] + last[:30], last[30:]) == first + last
    await stream.end()
    await eventually(lambda: router.in_flight() == 0)
    assert await router.metric("tokens_total", model="m", kind="prompt") == 7


async def test_usage_that_the_router_alone_asks_for(start_picker, gateway) -> None:
    router, _ = await start_picker()
    stream = await gateway(router)
    reply = await stream.ask(chat(stream=True))
    sent = await stream.given_back()
    assert json.loads(sent)["stream_options"] == {"include_usage": True}
    assert changed_headers(reply)["content-length"] == str(len(sent))
    await stream.answer(kind="text/event-stream")
    events = [
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        b'data: {"choices":[],"usage":%b}\n\n' % json.dumps(USAGE).encode(),
        b"data: [DONE]\n\n",
    ]
    whole = b"".join(events)
    got = await answer_parts(stream, whole[:80], whole[80:-5], whole[-5:])
    assert got == events[0] + events[2]
    assert await router.metric("tokens_total", model="m", kind="completion") == 5
    await stream.end()


async def test_usage_is_not_asked_for_where_it_cannot_be_taken_out(start_picker, gateway) -> None:
    router, _ = await start_picker()
    stream = await gateway(router, BUFFERED)
    reply = await stream.ask(chat(stream=True))
    assert reply.request_body.response.body_mutation.body == chat(stream=True)
    stream.call.cancel()


async def test_gateways_that_do_not_say_their_mode(start_picker, gateway) -> None:
    buffered = PickerSettings(body_mode="buffered")
    router, [replica] = await start_picker(picker=buffered)
    stream = await gateway(router, BUFFERED)
    assert destination(await stream.ask(config=False)) == address(replica)
    stream.call.cancel()


async def test_a_long_body_comes_back_in_parts_that_gateways_take(start_picker, gateway) -> None:
    router, _ = await start_picker()
    stream = await gateway(router)
    body = chat(user="x" * 3 * CHUNK_BYTES)
    await stream.head()
    for at in range(0, len(body), 50_000):
        await stream.body(body[at : at + 50_000], last=at + 50_000 >= len(body))
    await stream.receive()
    assert await stream.given_back() == body
    assert router.server.gateway.bodies.used == 0
    stream.call.cancel()


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
async def test_trailers(start_picker, gateway, eventually, mode) -> None:
    router, _ = await start_picker()
    stream = await gateway(router, mode)
    await stream.head()
    if mode == BUFFERED:
        await stream.receive()
    await stream.body(chat(), last=False)
    if mode == BUFFERED:
        destination(await stream.receive())
    await stream.send(request_trailers=pb.HttpTrailers())
    replies = []
    while not replies or replies[-1].WhichOneof("response") != "request_trailers":
        replies.append(await stream.receive())
    if mode == DUPLEX:
        assert [each.WhichOneof("response") for each in replies] == [
            "request_headers",
            "request_body",
            "request_trailers",
        ]
        body = replies[1].request_body.response.body_mutation.streamed_response
        assert (body.body, body.end_of_stream) == (chat(), False)
    await stream.answer()
    await stream.answer_body(ANSWER, last=False)
    assert router.in_flight() == 1
    await stream.send(response_trailers=pb.HttpTrailers())
    assert (await stream.receive()).WhichOneof("response") == "response_trailers"
    await eventually(lambda: router.in_flight() == 0)
    await stream.end()


async def test_the_name_that_engines_know_goes_into_the_body(
    start_picker, start_replica, gateway, model_entry, tmp_path
) -> None:
    replica = await start_replica()
    router, _ = await start_picker(0, models=[model_entry("m", replica)])
    config = router.config
    text = config.read_text() + "canaries:\n- {name: chat, split: {m: 1}}\n"
    config.write_text(text)
    await _known(router, "chat")
    stream = await gateway(router, BUFFERED)
    reply = await stream.ask(chat("chat"))
    body = reply.request_body.response.body_mutation.body
    assert json.loads(body)["model"] == "m"
    assert changed_headers(reply)["content-length"] == str(len(body))
    stream.call.cancel()


async def _known(router, name) -> None:
    from support.router import eventually

    await eventually(lambda: router.server.fleet.find(name, None) is not None)


async def test_headers_that_are_not_for_engines(start_picker, gateway, tmp_path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n- {id: k, key: kv-0123456789abcdef, models: ['*']}\n")
    router, _ = await start_picker(keys_file=keys)
    stream = await gateway(router)
    key = {"authorization": "Bearer kv-0123456789abcdef"}
    reply = await stream.ask(headers={**key, "x-kvasir-fleet-secret": "s", "x-other": "1"})
    assert removed_headers(reply) == ["authorization", "x-kvasir-fleet-secret"]
    stream.call.cancel()

    # Where the router asks for no key it is the engine's.
    router, _ = await start_picker()
    stream = await gateway(router)
    assert removed_headers(await stream.ask(headers=key)) == []
    stream.call.cancel()


async def test_answers_of_the_routers_own(start_picker, gateway, tmp_path) -> None:
    router, _ = await start_picker()
    stream = await gateway(router)
    await stream.head(path="/v1/models", method="GET", last=True)
    reply = await stream.receive()
    answer = reply.immediate_response
    assert (answer.status.code, changed_headers(reply)["content-type"]) == (200, "application/json")
    assert [each["id"] for each in json.loads(answer.body)["data"]] == ["m", "alias"]
    assert await stream.receive() is None


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
async def test_refusals(start_picker, gateway, mode) -> None:
    router, _ = await start_picker()
    for body, path, status, words in (
        (chat("unknown"), "/v1/chat/completions", 404, "unknown"),
        (b"{", "/v1/chat/completions", 400, "not a JSON object"),
        (b"", "/v1/chat/completions", 400, "empty"),
        (chat(), "/admin", 404, "/admin"),
        (chat(), "/a//b", 400, "dot segments"),
        (chat(), "/a b", 400, "target"),
    ):
        stream = await gateway(router, mode)
        reply = await stream.ask(body, path=path)
        answer = reply.immediate_response
        assert answer.status.code == status
        assert words in json.loads(answer.body)["error"]["message"]
        assert await stream.receive() is None
    assert router.server.gateway.bodies.used == 0


async def test_a_key_is_asked_for_before_the_body(start_picker, gateway, tmp_path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n- {id: k, key: kv-0123456789abcdef, models: ['*']}\n")
    router, _ = await start_picker(keys_file=keys)
    stream = await gateway(router, BUFFERED)
    await stream.head()
    reply = await stream.receive()
    assert reply.immediate_response.status.code == 401
    assert changed_headers(reply)["www-authenticate"] == "Bearer"


async def test_anthropics_clients_get_errors_of_their_kind(start_picker, gateway) -> None:
    router, _ = await start_picker()
    stream = await gateway(router)
    reply = await stream.ask(chat("unknown"), path="/v1/messages")
    assert json.loads(reply.immediate_response.body)["type"] == "error"


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (pb.NONE, "request_body_mode is NONE"),
        (pb.STREAMED, "request_body_mode is STREAMED"),
        (pb.BUFFERED_PARTIAL, "use FULL_DUPLEX_STREAMED or BUFFERED"),
    ],
)
async def test_a_filter_that_cannot_work(start_picker, gateway, mode, words) -> None:
    router, _ = await start_picker()
    stream = await gateway(router, mode)
    await stream.head()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stream.receive()
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.value.details()


async def test_messages_out_of_order(start_picker, gateway) -> None:
    router, _ = await start_picker()
    for words, messages in (
        ("observability_mode", [{"observability_mode": True}]),
        ("request_header_mode", [{"request_body": pb.HttpBody(body=b"x")}]),
        ("request_header_mode", [{"response_headers": pb.HttpHeaders()}]),
    ):
        stream = await gateway(router)
        for message in messages:
            await stream.send(**message)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stream.receive()
        assert words in error.value.details()

    stream = await gateway(router)
    await stream.ask()
    await stream.given_back()
    await stream.head()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stream.receive()
    assert "second request's header" in error.value.details()
    assert router.in_flight() == 0
