"""What all client connections of a process share, and where each request goes."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import msgspec

from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER
from kvasir_router.admission.admission import Admission
from kvasir_router.admission.admission_metrics import TenantMeter
from kvasir_router.admission.model_queue import Served
from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.poison_table import PoisonTable
from kvasir_router.fleet.target import rename
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.proxy.accounting import RequestAccounting
from kvasir_router.proxy.connection import ClientConnection
from kvasir_router.proxy.cors import Cors
from kvasir_router.proxy.local_routes import LocalRoutes
from kvasir_router.proxy.relay import Relay
from kvasir_router.proxy.transcript import TranscriptBudget
from kvasir_router.scaling.signals import SAMPLE_SECONDS, Signals
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.telemetry.access_log import AccessLog, AccessRecord
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.tokenizing.tokenizing import Tokenizing
from kvasir_router.tracing.tracer import Tracer
from kvasir_router.wire import responses
from kvasir_router.wire.envelope import DenseBodyError, decode_envelope, refusal
from kvasir_router.wire.form import FormError, form_type, read_form
from kvasir_router.wire.http_request import BodyBudget, Request, RequestError
from kvasir_router.wire.query import Query

_SWEEP_SECONDS = 0.5
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# For the ends of cut answers to be sent.
_LAST_WORDS_SECONDS = 0.1


class Gateway:
    """Routes requests; knows the connections, and whether the router is stopping."""

    def __init__(
        self,
        settings: RouterSettings,
        fleet: Fleet,
        metrics: Metrics,
        access_log: AccessLog | None,
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.metrics = metrics
        self.stopping = False
        self.serves = True
        """False in the index process, which serves no clients."""
        self.knows_models = False
        """Whether discovery has spoken once."""
        self.fleet_lines = (
            f"{FLEET_SECRET_HEADER}: {settings.fleet_secret}\r\n".encode()
            if settings.fleet_secret
            else b""
        )
        self.ask_metrics: Callable[[Callable[[responses.Answer], None]], None] | None = None
        """Asks for the metrics, to be answered later, where other processes have some too."""
        self.keeps_contract = bool(settings.fleet_secret)
        """Whether Kvasir engines know this router, and so tell it how to go on with a stream."""
        self.poison = PoisonTable()
        failover = settings.failover
        self.transcripts = TranscriptBudget(failover.stream_bytes, failover.streams_bytes)
        self.tasks = SupervisedTasks()
        metrics.task_failures = self.tasks.failures
        self.bodies = BodyBudget(settings.limits.buffered_bytes)
        metrics.body_bytes = lambda: self.bodies.used
        metrics.transcript_bytes = lambda: self.transcripts.used
        self.admission = Admission(settings.keys_file, settings.routers)
        self.tenants = TenantMeter()
        self.line = RequestQueue(settings.waiting)
        self.line.refused = self._waited_in_vain
        self.tokenizing = Tokenizing(settings.tokenizing)
        self.tracer: Tracer | None = None
        if settings.otlp_endpoint is not None:
            self.tracer = Tracer(
                settings.otlp_endpoint, settings.trace_ratio, metrics.spans_were_dropped
            )
        self.signals = Signals(settings.slo, settings.slo_by_model)
        self.access_log = access_log
        self.ledger = RequestAccounting(self)
        self._local = LocalRoutes(self)
        self._cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self._clients: set[ClientConnection] = set()
        self._full = responses.error(
            503, "The router has all the connections it may.", "overloaded", retry_after=1
        )

    @property
    def ready(self) -> bool:
        """Whether requests are answered, or may wait: a file lists replicas, so it takes one that
        serves; in a cluster they come and go, and knowing of their models is enough."""
        waits = self.settings.config is None and self.knows_models
        known = self.fleet.ready or waits
        return known and self.serves and not (self.stopping or self.tasks.down)

    # Connections

    def connected(self, client: ClientConnection) -> responses.Answer | None:
        """A refusal when there are too many."""
        self._clients.add(client)
        self.metrics.connections = len(self._clients)
        return self._full if len(self._clients) > self.settings.max_connections else None

    def disconnected(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        self.metrics.connections = len(self._clients)

    async def sweep(self) -> None:
        """Enforce deadlines, forever: one look at all connections costs less than a timer each."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = loop.time()
            for client in [client for client in self._clients if client.deadline < now]:
                client.expire()

    async def sample(self) -> None:
        """Take the signals for scaling, forever."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            for model in self.fleet.models.values():
                waiting = self.line.waiting(model)
                self.signals.sample(model, waiting, self.line.waiting_tokens(model))

    def keep_models(self) -> None:
        """Forget what is known of models that are gone."""
        names = set(self.fleet.models)
        self.metrics.keep_models(names)
        self.signals.keep_models(names)
        self.line.keep_models(self.fleet.models.values())
        self.tokenizing.keep_models(self.fleet.models.values())

    async def drain(self, timeout: float) -> None:
        """Wait until the connections are closed, at most `timeout` seconds; then end them.

        Each answer tells its client to close. A connection without one, because it is idle or its
        answer began before, may be used at any moment: only a quiet time tells that it will not be.
        """
        self.stopping = True
        until = time.monotonic() + timeout
        while self._clients and time.monotonic() < until:
            for client in list(self._clients):
                client.close_if_idle(self.settings.drain_idle)
            await asyncio.sleep(0.02)
        for client in list(self._clients):
            client.stop()
        if self._clients:
            await asyncio.sleep(_LAST_WORDS_SECONDS)
        for client in list(self._clients):
            client.abort()

    # Requests

    def handle(self, client: ClientConnection, request: Request) -> None:
        """Answer the request, or start to relay it."""
        preflight = self._cors.see(request) if self._cors is not None else None
        if preflight is not None:
            self.answer(client, request, preflight)
        elif request.method == b"POST" and "POST" in request.endpoint.methods:
            self._route(client, request)
        elif self.ask_metrics is not None and self._local.is_metrics(request):
            self.ask_metrics(partial(self.answer, client, request))
        else:
            self.answer(client, request, self._local.answer(request))

    def refusal(self, request: Request) -> responses.Answer | None:
        """Why the request is refused before its body is read, if it is."""
        holder = self.admission.holder(request.authorization)
        if not isinstance(holder, responses.Answer):
            return None
        if self._cors is not None:
            self._cors.see(request)
        return holder

    def _waited_in_vain(self, model: Served, reason: str) -> None:
        self.metrics.model(model.name).refusals[reason] += 1

    def refused(self, refusal: RequestError) -> None:
        """Account for something that was not a valid request."""
        self.metrics.model("").codes[refusal.status] += 1
        if self.access_log is not None:
            self.access_log.write(AccessRecord(status=refusal.status, reason=refusal.message))

    def _route(self, client: ClientConnection, request: Request) -> None:
        holder = self.admission.holder(request.authorization)
        if isinstance(holder, responses.Answer):
            self.answer(client, request, holder)
            return
        if holder is None and request.authorization:
            request.lines.append(b"Authorization: %b\r\n" % request.authorization)
        try:
            form = form_type(request)
            envelope = read_form(request.body, form) if form else decode_envelope(request.body)
        except FormError as error:
            self._bad_body(client, request, str(error), None)
            return
        except _UNREADABLE as error:
            self._bad_body(client, request, *refusal(request.body, error))
            return
        name = envelope.model
        if not name:
            self._bad_body(client, request, "`model` is missing: name the model to use.", "model")
            return
        user = envelope.user
        target = self.fleet.find(name, user if isinstance(user, str) else None)
        if target is None:
            self.answer(client, request, self._local.unknown_model(name, holder))
            return
        if target.renamed and not form:
            try:
                request.body = rename(request.body, target.model.name)
            except DenseBodyError as error:
                self._bad_body(client, request, str(error), None)
                return
            except _UNREADABLE as error:
                self._bad_body(client, request, *refusal(request.body, error))
                return
        ticket = self.admission.admit(holder, envelope, len(request.body), name, target)
        if isinstance(ticket, responses.Answer):
            self.answer(client, request, ticket)
            return
        query = Query(request, envelope, lora=target.adapter)
        relay = Relay(self, client, query, target.model, ticket)
        if self.tracer is not None:
            self.tracer.began(relay)
        client.relay(relay)

    def _bad_body(
        self, client: ClientConnection, request: Request, message: str, param: str | None
    ) -> None:
        self.answer(client, request, responses.error(400, message, "invalid_body", param))

    def answer(self, client: ClientConnection, request: Request, answer: responses.Answer) -> None:
        """Answer a request that no replica answers."""
        self.metrics.model("").codes[answer.status] += 1
        if self.access_log is not None:
            self.access_log.write(
                AccessRecord(
                    method=request.method.decode(),
                    path=request.path,
                    status=answer.status,
                    bytes=len(answer.body),
                    request_id=request.request_id.decode(),
                )
            )
        client.answer(request, answer)
