"""What holds for chats, responses and messages alike: keys, limits, fairness, salts, prefixes."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support import broken_messages, broken_responses, broken_streams

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.wire.http_request import Limits


@dataclass
class Protocol:
    """One of the three, with what an engine of others answers: it counts 20 tokens of prompt and 30
    of output."""

    path: str
    body: Callable[[str, int], dict[str, Any]]
    """Body with this prompt and so many tokens of output at most."""
    usage: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    """Events of a stream: name, data."""
    engine: Callable[..., Any]
    """Script of a Kvasir engine whose stream may break."""

    def sentence(self, answer: Any) -> str:
        """The sentence of a refusal, which has the protocol's form."""
        content = answer.json()
        error = content["error"]
        if self.path == "/v1/messages":
            assert content.keys() == {"type", "error"}
            assert error.keys() == {"type", "message"}
        else:
            assert content.keys() == {"error"}
            assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"].endswith(".")
        return str(error["message"])


CHAT_USAGE = {"prompt_tokens": 20, "completion_tokens": 30}
RESPONSE_USAGE = {"input_tokens": 20, "output_tokens": 30}
MESSAGE_USAGE = {"input_tokens": 15, "cache_read_input_tokens": 5, "output_tokens": 30}
PROTOCOLS = [
    Protocol(
        "/v1/chat/completions",
        lambda text, most: {"messages": [{"role": "user", "content": text}], "max_tokens": most},
        CHAT_USAGE,
        [("", {"choices": [{"delta": {}}]}), ("", {"choices": [], "usage": CHAT_USAGE})],
        broken_streams.engine,
    ),
    Protocol(
        "/v1/responses",
        lambda text, most: {"input": text, "max_output_tokens": most},
        RESPONSE_USAGE,
        [("response.completed", {"response": {"output": [], "usage": RESPONSE_USAGE}})],
        broken_responses.response_engine,
    ),
    Protocol(
        "/v1/messages",
        lambda text, most: {"messages": [{"role": "user", "content": text}], "max_tokens": most},
        MESSAGE_USAGE,
        [
            ("message_start", {"message": {"usage": {**MESSAGE_USAGE, "output_tokens": 0}}}),
            ("message_delta", {"delta": {}, "usage": {"output_tokens": 30}}),
        ],
        broken_messages.message_engine,
    ),
]


@pytest.fixture(params=PROTOCOLS, ids=lambda each: each.path)
def protocol(request) -> Protocol:
    made: Protocol = request.param
    return made


@pytest.fixture
def keys_file(tmp_path):
    """keys_file(key, ...): the file with these, whose secrets are `kv-` and their ids."""

    def write(*keys: dict[str, Any]):
        entries = [ApiKey(hash=hash_key(f"kv-{key['id']}".encode()), **key) for key in keys]
        path = tmp_path / "keys.yaml"
        path.write_bytes(dump_keys(KeyFile(keys=tuple(entries))))
        return path

    return write


@pytest.fixture
def send(client, protocol):
    """send(router, key, **fields): the answer to a request of the protocol."""

    async def post(router, key: str = "a", text: str = "hi", most: int = 100, **fields: Any) -> Any:
        body = {"model": "m", **protocol.body(text, most), **fields}
        headers = {"x-api-key": f"kv-{key}"}
        return await client.post(router.url + protocol.path, json=body, headers=headers)

    return post


def telling(protocol: Protocol) -> Any:
    """A script: an answer of an engine of others that tells of its usage."""

    async def answer(exchange: Any) -> None:
        if not json.loads(exchange.request.body).get("stream"):
            await exchange.json(200, {"usage": protocol.usage})
            return
        await exchange.start_events()
        for name, data in protocol.events:
            line = f"event: {name}\n" if name else ""
            await exchange.chunk(f"{line}data: {json.dumps(data)}\n\n".encode())
        await exchange.end()

    return answer


def held(usage: dict[str, Any]) -> Any:
    """A script: an answer with this usage, when the test says so."""

    async def answer(exchange: Any) -> None:
        exchange.request.go = asyncio.Event()
        await exchange.request.go.wait()
        await exchange.json(200, {"usage": usage})

    return answer


async def test_a_key_in_either_header_lets_in_and_goes_no_further(
    one, keys_file, client, send, protocol
) -> None:
    router, replica = await one(keys_file=keys_file({"id": "a"}))
    assert (await send(router)).status_code == 200
    body = {"model": "m", **protocol.body("hi", 9)}
    url, headers = router.url + protocol.path, {"Authorization": "Bearer kv-a"}
    assert (await client.post(url, json=body, headers=headers)).status_code == 200
    refused = await send(router, "b")
    assert refused.status_code == 401
    assert "key" in protocol.sentence(refused)
    assert len(replica.requests) == 2
    assert not [each for each in replica.requests if "kv-" in str(each)]


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [({"model": "n"}, 404, "`n` does not exist"), ({"model": ""}, 400, "`model` is missing")],
)
async def test_refusals_have_the_protocol_s_form(
    one, keys_file, send, protocol, fields: dict[str, Any], status: int, sentence: str
) -> None:
    router, replica = await one(keys_file=keys_file({"id": "a"}))
    refused = await send(router, **fields)
    assert refused.status_code == status
    assert sentence in protocol.sentence(refused)
    assert not replica.requests


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"[]", 400, "must be a JSON object"),
        (b'{"model": "m"', 400, "is not a JSON object"),
        (b'{"model": "m", "x": "%b"}' % (b"x" * 100_000), 413, "larger than 90000 bytes"),
    ],
)
async def test_so_have_those_of_bodies(
    one, client, protocol, body: bytes, status: int, sentence: str
) -> None:
    router, replica = await one(limits=Limits(body_bytes=90_000))
    refused = await client.post(router.url + protocol.path, content=body)
    assert refused.status_code == status
    assert sentence in protocol.sentence(refused)
    assert not replica.requests


async def test_what_an_answer_may_be_long_is_set_aside(
    one, keys_file, send, protocol, eventually
) -> None:
    key = {"id": "a", "tokens_per_day": 1000}
    router, replica = await one(held({}), keys_file=keys_file(key))
    first = asyncio.create_task(send(router, most=1000))
    await eventually(lambda: bool(replica.requests))
    refused = await send(router, most=1000)
    assert refused.status_code == 429
    assert "1000 tokens a day" in protocol.sentence(refused)
    assert int(refused.headers["retry-after"]) >= 1
    replica.requests[0].go.set()
    assert (await first).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_budget_pays_for_what_an_engine_of_others_counts(
    one, keys_file, send, protocol, stream: bool
) -> None:
    key = {"id": "a", "tenant": "t", "tokens_per_day": 300}
    router, _ = await one(telling(protocol), keys_file=keys_file(key))
    codes = [(await send(router, stream=stream)).status_code for _ in range(8)]
    assert codes == [200] * 6 + [429] * 2
    assert await router.metric("tenant_tokens_total", tenant="t", kind="prompt") == 120
    assert await router.metric("tenant_tokens_total", tenant="t", kind="completion") == 180


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/tokenize", "/v1/detokenize"])
async def test_what_an_engine_does_not_compute_costs_a_request_and_no_token(
    one, keys_file, client, path: str
) -> None:
    key = {"id": "a", "tenant": "t", "tokens_per_day": 300}
    router, replica = await one(keys_file=keys_file(key))
    body = {"model": "m", "prompt": "x" * 2000, "max_tokens": 1000}
    headers = {"Authorization": "Bearer kv-a"}
    for _ in range(3):
        answer = await client.post(f"{router.url}{path}", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
    assert len(replica.requests) == 3
    assert await router.metric("tenant_requests_total", tenant="t", code="200") == 3
    used = [
        await router.metric("tenant_tokens_total", tenant="t", kind=kind)
        for kind in ("prompt", "completion")
    ]
    assert used == [0, 0]


@pytest.mark.slow
async def test_a_stream_that_moved_is_charged_once(routed, keys_file, send, protocol) -> None:
    router, a, b = await routed(
        protocol.engine(events=6),
        protocol.engine(),
        keys_file=keys_file({"id": "a", "tenant": "t"}),
    )
    assert (await send(router, stream=True)).status_code == 200
    assert (len(a.requests), len(b.requests)) == (1, 1)
    assert await router.metric("stream_migrations_total", outcome="moved") == 1
    used = [
        await router.metric("tenant_tokens_total", tenant="t", kind=kind)
        for kind in ("prompt", "completion")
    ]
    assert used == [broken_streams.USAGE[name] for name in ("prompt_tokens", "completion_tokens")]
    assert await router.metric("tenant_requests_total", tenant="t", code="200") == 1


async def test_a_tenant_s_cache_is_its_own(one, keys_file, send) -> None:
    keys = [{"id": "a", "tenant": "t"}, {"id": "b", "tenant": "t"}, {"id": "c", "tenant": "u"}]
    router, replica = await one(keys_file=keys_file(*keys))
    for key in ("a", "b", "c"):
        await send(router, key)
    first, same, other = (json.loads(each.body)["cache_salt"] for each in replica.requests)
    assert first == same != other


async def test_a_tenant_with_much_to_do_makes_no_other_wait_for_all_of_it(
    one, keys_file, send, protocol, eventually
) -> None:
    used = {name: 20 * tokens for name, tokens in protocol.usage.items()}
    router, replica = await one(
        held(used),
        keys_file=keys_file({"id": "a", "tenant": "t"}, {"id": "b", "tenant": "u"}),
        max_in_flight=1,
        waiting=QueueLimits(),
    )
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    asked = []
    for waiting, key in enumerate("aaab"):
        asked.append(asyncio.create_task(send(router, key, marker=key)))
        await eventually(lambda waiting=waiting: queue.waiting(model) == waiting)
        await eventually(lambda: bool(replica.requests))
    for number in range(4):
        await eventually(lambda number=number: len(replica.requests) == number + 1)
        await eventually(lambda: hasattr(replica.requests[-1], "go"))
        replica.requests[-1].go.set()
    assert [(await each).status_code for each in asked] == [200] * 4
    served = "".join(json.loads(each.body)["marker"] for each in replica.requests)
    assert served == "abaa"


async def test_a_prompt_goes_where_its_beginning_was_computed(two, scripts, send) -> None:
    router, a, b = await two(scripts.ok, scripts.ok)
    begun = {}
    for name in "xyz":
        before = len(a.requests)
        await send(router, text=name * 6000)
        begun[name] = len(a.requests) > before
    for turn in range(1, 5):
        for name in "xyz":
            before = len(a.requests)
            await send(router, text=name * 6000 + f" and {turn}" * 200 * turn)
            assert (len(a.requests) > before) is begun[name], (name, turn)
    assert len(a.requests) + len(b.requests) == 15
    assert {True, False} == set(begun.values())
