"""What becomes of a request's numbers when it is over: metrics, limits, shares, signals, log."""

import asyncio
import time
from typing import TYPE_CHECKING

from kvasir_router.admission.usage_estimate import estimate_usage
from kvasir_router.telemetry.access_log import AccessRecord
from kvasir_router.wire.usage import Usage

if TYPE_CHECKING:
    from kvasir_router.proxy.gateway import Gateway
    from kvasir_router.proxy.relay import Relay

CLIENT_CLOSED = 499
"""The status in log and metrics when the client left first (nginx's)."""

# Statuses after which an engine has computed something.
_COMPUTED = frozenset({200, CLIENT_CLOSED})
_NOTHING_USED = Usage(0, 0)


class RequestAccounting:
    """Accounts for relayed requests, once each. Those that end in one turn of the loop are taken
    together at the turn's end: answers go first, and code that runs again at once runs faster."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._ended: list[Relay] = []

    def add(self, relay: "Relay") -> None:
        """Record a finished request."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._close)
        self._ended.append(relay)

    def _close(self) -> None:
        ended, self._ended = self._ended, []
        unix = time.time()
        for relay in ended:
            self._account(relay, unix)

    def _account(self, relay: "Relay", unix: float) -> None:
        gateway, model = self._gateway, relay.model
        status, usage, metrics = relay.status, relay.usage, relay.metrics
        received, first_byte_at = relay.received, relay.first_byte_at
        seconds = relay.ended_at - received
        first_byte = first_byte_at - received if first_byte_at else 0.0
        metrics.codes[status] += 1
        metrics.duration.observe(seconds)
        if first_byte:
            metrics.first_byte.observe(first_byte)
        if status == CLIENT_CLOSED:
            metrics.disconnects += 1
        if relay.choice is not None:
            model.ended(relay.query, relay.choice, usage)
            if model.spec.tokenizer is not None and status == 200:
                gateway.tokenizing.answered(model, relay.query.chain, relay.choice.replica)
        self._settle(relay, unix)
        gateway.signals.model(model.name).ended(status, first_byte, seconds, usage, relay.streams)
        trace_id = gateway.tracer.ended(relay) if gateway.tracer is not None else ""
        if gateway.access_log is not None:
            gateway.access_log.write(_record(relay, seconds, trace_id, unix))

    def _settle(self, relay: "Relay", unix: float) -> None:
        """What it used goes to its key and its tenant."""
        ticket, usage, metrics = relay.ticket, relay.usage, relay.metrics
        prompt = output = 0
        if usage is not None:
            prompt, output, cached = usage
            metrics.prompt_tokens += prompt
            metrics.completion_tokens += output
            if cached:
                metrics.cached_tokens += cached
        elif relay.replica_id and relay.status in _COMPUTED:
            prompt, output = estimate_usage(
                ticket, streamed=relay.streams, sent_bytes=relay.sent_bytes
            )
        if ticket.limits is not None:
            ticket.settle(prompt + output, relay.ended_at, unix)
        self._gateway.line.settle(relay.model, ticket, prompt, output)
        if ticket.key_id:
            self._gateway.tenants.used(ticket.tenant, relay.status, prompt, output)


def _record(relay: "Relay", seconds: float, trace_id: str, unix: float) -> AccessRecord:
    """For the access log."""
    request, ticket = relay.request, relay.ticket
    prompt, output, cached = relay.usage or _NOTHING_USED
    return AccessRecord(
        "POST",
        request.path,
        relay.status,
        round(seconds * 1000, 3),
        relay.sent_bytes,
        request.request_id.decode(),
        relay.model.name,
        relay.replica_id,
        ticket.tenant,
        ticket.key_id,
        prompt,
        cached or 0,
        output,
        trace_id,
        "",
        unix,
    )
