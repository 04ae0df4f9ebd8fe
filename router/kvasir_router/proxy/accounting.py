"""Accounting of requests that are over: metrics, limits, shares, signals, traces, log."""

import asyncio
import time
from collections.abc import Callable

from kvasir_router.admission.admission_metrics import TenantMeter
from kvasir_router.admission.outcome import Outcome
from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.scaling.signals import Signals
from kvasir_router.telemetry.access_log import AccessLog, AccessRecord
from kvasir_router.tokenizing.tokenizing import Tokenizing
from kvasir_router.tracing.tracer import Tracer
from kvasir_router.wire.usage import Usage

CLIENT_CLOSED = 499
"""The status in log and metrics when the client left first (nginx's)."""

# Statuses after which an engine has computed something.
_COMPUTED = frozenset({200, CLIENT_CLOSED, 504})
# Statuses of a request whose client left, or whose time was over, before a replica answered.
_WAITED_IN_VAIN = frozenset({CLIENT_CLOSED, 504})
_NOTHING_USED = Usage(0, 0)


class RequestAccounting:
    """Accounts for relayed requests, once each. Those that end in one turn of the loop are taken
    together at the turn's end: answers go first, and code that runs again at once runs faster."""

    def __init__(
        self,
        tokenizing: Tokenizing,
        queue: RequestQueue,
        tenants: TenantMeter,
        signals: Signals,
        tracer: Tracer | None,
        access_log: AccessLog | None,
        defect: Callable[[str, BaseException], None],
    ) -> None:
        """`defect` is told what raised for one request; the others are accounted for."""
        self._defect = defect
        self._tokenizing = tokenizing
        self._queue = queue
        self._tenants = tenants
        self._signals = signals
        self._tracer = tracer
        self._access_log = access_log
        self._ended: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Record a finished request."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._close)
        self._ended.append(outcome)

    def _close(self) -> None:
        ended, self._ended = self._ended, []
        unix = time.time()
        for outcome in ended:
            try:
                self._account(outcome, unix)
            except Exception as error:
                self._defect("accounting", error)

    def _account(self, outcome: Outcome, unix: float) -> None:
        model, metrics, choice = outcome.model, outcome.metrics, outcome.choice
        status, usage, query = outcome.status, outcome.usage, outcome.query
        seconds, first_byte = outcome.seconds, outcome.first_byte
        metrics.codes[status] += 1
        metrics.duration.observe(seconds)
        if first_byte:
            metrics.first_byte.observe(first_byte)
        if status == CLIENT_CLOSED:
            metrics.disconnects += 1
        self._settle(outcome, unix)
        if choice is not None:
            model.ended(query, choice, usage)
            if model.split is not None:
                model.split.answered(query, choice.replica, status, first_byte, seconds, usage)
            if model.spec.tokenizer is not None and status == 200:
                self._tokenizing.answered(model, query.chain, choice.replica)
        elif status in _WAITED_IN_VAIN:
            model.waited_in_vain(outcome.replica_id)
        signals = self._signals.model(model.name)
        signals.ended(status, first_byte, seconds, usage, query.streams)
        trace_id = self._tracer.ended(outcome) if self._tracer is not None else ""
        if self._access_log is not None:
            self._access_log.write(_record(outcome, seconds, trace_id, unix))

    def _settle(self, outcome: Outcome, unix: float) -> None:
        """Charge what the request used to its key and its tenant."""
        ticket, usage, metrics = outcome.ticket, outcome.usage, outcome.metrics
        prompt = output = 0
        if usage is not None:
            prompt, output, cached = usage
            metrics.prompt_tokens += prompt
            metrics.completion_tokens += output
            if cached:
                metrics.cached_tokens += cached
        elif outcome.replica_id and outcome.status in _COMPUTED:
            prompt, output = ticket.used_tokens(
                streamed=outcome.query.streams,
                sent_bytes=outcome.sent_bytes,
                seconds=0.0 if outcome.status == 200 else outcome.seconds,
            )
        if ticket.limits is not None:
            ticket.settle(prompt + output, outcome.ended_at, unix)
        self._queue.settle(outcome.model, ticket, prompt, output)
        if ticket.key_id:
            self._tenants.used(ticket.tenant, outcome.status, prompt, output)
            cached = (usage.cached_tokens or 0) if usage is not None else 0
            self._tenants.used_by_key(
                ticket.key_id, ticket.tenant, outcome.model.name, prompt, cached, output
            )


def _record(outcome: Outcome, seconds: float, trace_id: str, unix: float) -> AccessRecord:
    """Make the request's line of the access log."""
    request, ticket = outcome.query.request, outcome.ticket
    prompt, output, cached = outcome.usage or _NOTHING_USED
    return AccessRecord(
        "POST",
        request.path,
        outcome.status,
        round(seconds * 1000, 3),
        outcome.sent_bytes,
        request.request_id.decode(),
        outcome.model.name,
        outcome.replica_id,
        ticket.tenant,
        ticket.key_id,
        prompt,
        cached or 0,
        output,
        trace_id,
        "",
        request.client,
        unix,
    )
