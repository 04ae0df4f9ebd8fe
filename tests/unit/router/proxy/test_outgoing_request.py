"""Bytes that replicas get of a request."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from kvasir_router.admission.ticket import Ticket
from kvasir_router.discovery.specs import EngineKind
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.process.components import RouterComponents
from kvasir_router.proxy.attempts.attempt import UpstreamRequest
from kvasir_router.proxy.attempts.outgoing_request import OutgoingRequest
from kvasir_router.proxy.client.connection import ClientConnection
from kvasir_router.proxy.relay import Relay
from kvasir_router.proxy.resuming.obstacle import ObstacleError
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query

BODY = b'{"model": "m", "prompt": "a", "stream": true}'


@pytest.fixture
async def make_attempt(make_choice) -> AsyncIterator[Callable[..., UpstreamRequest]]:
    """make_attempt(contract=..., engine=KVASIR): a request to a replica, not sent."""
    router = RouterComponents(RouterSettings(config=Path("unused.yaml"), access_log=False))
    gateway = router.gateway

    def made(*, contract: bool, engine: EngineKind = EngineKind.KVASIR) -> UpstreamRequest:
        model, choice = make_choice(engine=engine)
        query, client = make_query(), ClientConnection(gateway)
        numbers, ticket = ModelMetrics(), Ticket(1, 2)
        relay = Relay(gateway._relay_services, client, query, model, numbers, ticket)
        return UpstreamRequest(relay._attempts, query, model, choice, contract, gateway.tasks, None)

    yield made
    await router.close()


def make_query(body: bytes = BODY, lora: str = "") -> Query:
    request = Request()
    request.target, request.path = b"/v1/completions?a=1", "/v1/completions"
    request.lines = [b"Accept: */*\r\n"]
    request.request_id = b"id-1"
    request.body = body
    return Query(request, msgspec.json.decode(body, type=Envelope), lora=lora)


@pytest.fixture
def outgoing() -> OutgoingRequest:
    return OutgoingRequest(make_query(), FleetSecrets("s" * 32), "m")


async def test_an_engine_that_knows_the_router_gets_the_body_as_it_came(
    outgoing, make_attempt
) -> None:
    attempt = make_attempt(contract=True)
    head, body = outgoing.rendered(attempt)
    lines = head.split(b"\r\n")
    assert body == BODY
    assert not attempt.asks_for_usage
    assert lines[:3] == [
        b"POST /v1/completions?a=1 HTTP/1.1",
        b"Host: 10.0.0.1:8000",
        b"Accept: */*",
    ]
    assert b"Content-Length: %d" % len(BODY) in lines
    assert b"X-Request-Id: id-1" in lines
    assert b"s" * 32 in head


async def test_another_one_is_asked_for_usage_and_told_no_secret(outgoing, make_attempt) -> None:
    attempt = make_attempt(contract=False)
    head, body = outgoing.rendered(attempt)
    assert attempt.asks_for_usage
    assert msgspec.json.decode(body)["stream_options"] == {"include_usage": True}
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert b"s" * 32 not in head


async def test_the_next_one_goes_on_from_a_handover(outgoing, make_attempt) -> None:
    state = {"choices": [{"t": [5, 6]}], "seed": 9}
    outgoing.go_on_from(msgspec.json.encode({"error": {"handover": state}}))
    _, body = outgoing.rendered(make_attempt(contract=True))
    resume = msgspec.json.decode(body)["resume"]
    assert (resume["output_token_ids"], resume["seed"]) == ([5, 6], 9)


async def test_a_stream_that_was_not_kept_leaves_the_body_as_it_is(outgoing, make_attempt) -> None:
    with pytest.raises(ObstacleError):
        outgoing.go_on_after(None)
    assert outgoing.rendered(make_attempt(contract=True))[1] == BODY


async def test_nothing_is_held_after_the_end(outgoing, make_attempt) -> None:
    outgoing.release()
    assert outgoing.rendered(make_attempt(contract=True))[1] == b""


@pytest.mark.parametrize(
    ("engine", "base", "name"),
    [
        (EngineKind.SGLANG, "m", "m:sql"),
        (EngineKind.SGLANG, "org/m:v1", "org/m:sql"),
        (EngineKind.VLLM, "m", "sql"),
        (EngineKind.KVASIR, "m", "sql"),
    ],
)
async def test_sglang_is_asked_for_an_adapter_behind_its_models_name(
    make_attempt, engine, base, name
) -> None:
    query = make_query(b'{"model": "sql", "prompt": "a"}', lora="sql")
    outgoing = OutgoingRequest(query, FleetSecrets("s" * 32), base)
    head, body = outgoing.rendered(make_attempt(contract=False, engine=engine))
    assert msgspec.json.decode(body) == {"model": name, "prompt": "a"}
    assert b"Content-Length: %d\r\n" % len(body) in head
