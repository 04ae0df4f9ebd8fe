"""`/debug/route`: where a request would go, and how its model's policy sees every replica."""

from dataclasses import asdict
from typing import Any

from kvasir_router.admin.statistics import Statistics
from kvasir_router.discovery.specs import Departure
from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.wire.envelope import decode_envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query


class UnknownModelError(ValueError):
    """The body names no model that exists."""


def explain(gateway: Gateway, statistics: Statistics, body: bytes, path: str) -> dict[str, Any]:
    """Return the choice of a replica for a request with `body` to `path`. Nothing is sent and
    nothing remembered.

    Raises msgspec.DecodeError when the body is no JSON object with a model's name, and
    UnknownModelError when there is no such model.
    """
    envelope = decode_envelope(body)
    name = envelope.model or ""
    target = gateway.fleet.find(name)
    if target is None:
        raise UnknownModelError(f"there is no model {name[:256]!r}")
    request = Request()
    request.method, request.target, request.path, request.body = b"POST", path.encode(), path, body
    model = target.model
    query = Query(request, envelope, lora=target.adapter)
    usable = [each for each in model.usable if each.holds(query.lora)]
    return {
        "model": model.name,
        "adapter": target.adapter,
        "text_blocks": len(query.chain),
        "waiting": statistics.waiting(model)[0],
        "candidates": [asdict(score) for score in model.policy.explain(query, usable)]
        if usable
        else [],
        "left_out": {
            replica.id: _why_not(replica, query.lora)
            for replica in model.replicas.values()
            if replica not in usable
        },
    }


def _why_not(replica: Replica, adapter: str) -> str:
    if replica.draining:
        return "draining"
    if replica.departure is not Departure.NONE:
        return "leaving"
    if not replica.holds(adapter):
        return "adapter not loaded"
    return (
        "full" if replica.full else f"{replica.health.value}, breaker {replica.breaker.state.value}"
    )
