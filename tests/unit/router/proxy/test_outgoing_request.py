"""Bytes that replicas get of a request."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvasir_router.discovery.specs import EngineKind
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.proxy.attempts.outgoing_request import OutgoingRequest
from kvasir_router.proxy.resuming.obstacle import ObstacleError
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query

BODY = b'{"model": "m", "prompt": "a", "stream": true}'


ENGINE = SimpleNamespace(upstream=None, engine=EngineKind.KVASIR)


@dataclass
class Attempt:
    """What a request's bytes depend on of an attempt."""

    contract: bool
    asks_for_usage: bool = False
    replica: Any = field(
        default_factory=lambda: SimpleNamespace(authority=b"10.0.0.1:8000", spec=ENGINE)
    )


@pytest.fixture
def outgoing() -> OutgoingRequest:
    request = Request()
    request.target, request.path = b"/v1/completions?a=1", "/v1/completions"
    request.lines = [b"Accept: */*\r\n"]
    request.request_id = b"id-1"
    request.body = BODY
    query = Query(request, msgspec.json.decode(BODY, type=Envelope))
    return OutgoingRequest(query, FleetSecrets("s" * 32), "m")


def test_an_engine_that_knows_the_router_gets_the_body_as_it_came(outgoing) -> None:
    attempt = Attempt(contract=True)
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


def test_another_one_is_asked_for_usage_and_told_no_secret(outgoing) -> None:
    attempt = Attempt(contract=False)
    head, body = outgoing.rendered(attempt)
    assert attempt.asks_for_usage
    assert msgspec.json.decode(body)["stream_options"] == {"include_usage": True}
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert b"s" * 32 not in head


def test_the_next_one_goes_on_from_a_handover(outgoing) -> None:
    state = {"choices": [{"t": [5, 6]}], "seed": 9}
    outgoing.go_on_from(msgspec.json.encode({"error": {"handover": state}}))
    _, body = outgoing.rendered(Attempt(contract=True))
    resume = msgspec.json.decode(body)["resume"]
    assert (resume["output_token_ids"], resume["seed"]) == ([5, 6], 9)


def test_a_stream_that_was_not_kept_leaves_the_body_as_it_is(outgoing) -> None:
    with pytest.raises(ObstacleError):
        outgoing.go_on_after(None)
    assert outgoing.rendered(Attempt(contract=True))[1] == BODY


def test_nothing_is_held_after_the_end(outgoing) -> None:
    outgoing.release()
    assert outgoing.rendered(Attempt(contract=True))[1] == b""


def test_an_engine_gets_the_models_name_as_it_takes_it() -> None:
    request = Request()
    request.target, request.path = b"/v1/completions", "/v1/completions"
    request.body = b'{"model": "sql", "prompt": "a"}'
    query = Query(request, msgspec.json.decode(request.body, type=Envelope), lora="sql")
    spec = SimpleNamespace(upstream=None, engine=EngineKind.SGLANG)
    replica = SimpleNamespace(authority=b"10.0.0.1:8000", spec=spec)
    head, body = OutgoingRequest(query, FleetSecrets("s" * 32), "m").rendered(
        Attempt(contract=False, replica=replica)
    )
    assert msgspec.json.decode(body) == {"model": "m:sql", "prompt": "a"}
    assert b"Content-Length: %d\r\n" % len(body) in head
