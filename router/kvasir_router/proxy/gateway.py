"""Shared state of a process's client connections, and the routing of each request."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import msgspec

from kvasir_router.admission.admission import Admission
from kvasir_router.admission.admission_metrics import TenantMeter
from kvasir_router.admission.model_queue import Served
from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.admission.tenant_salt import TenantSalt
from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.poison_table import PoisonTable
from kvasir_router.fleet.target import rename
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.proxy import failure_responses
from kvasir_router.proxy.accounting import RequestAccounting
from kvasir_router.proxy.client_response import Client
from kvasir_router.proxy.cors import Cors
from kvasir_router.proxy.local_routes import LocalRoutes
from kvasir_router.proxy.relay import Relay
from kvasir_router.proxy.relay_services import RelayServices
from kvasir_router.proxy.transcript import TranscriptBudget
from kvasir_router.scaling.signals import Signals
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.telemetry.access_log import AccessLog, AccessRecord
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.tokenizing.tokenizing import Tokenizing
from kvasir_router.tracing.tracer import Tracer
from kvasir_router.wire import responses
from kvasir_router.wire.envelope import (
    OUTLINED,
    DenseBodyError,
    Envelope,
    decode_envelope,
    is_bracketed,
    read_outline,
    refusal,
)
from kvasir_router.wire.form import form_of, form_type, read_form, rename_form
from kvasir_router.wire.http_request import BodyBudget, Request, RequestError
from kvasir_router.wire.long_bodies.body_edit import replace_member
from kvasir_router.wire.long_bodies.body_scan import (
    BodyError,
    BodyScan,
    is_available,
    outline_of,
)
from kvasir_router.wire.long_bodies.form_scan import Form, FormError, FormScan
from kvasir_router.wire.long_bodies.media import media_in
from kvasir_router.wire.query import Query

SWEEP_SECONDS = 0.5
"""Between two looks at the deadlines of all connections."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# For the ends of cut answers to be sent.
_LAST_WORDS_SECONDS = 0.1


class GatewayClient(Client):
    """Connection of a client, as the gateway needs it."""

    deadline: float
    """Loop time at which `expire` is called."""

    def defect(self, request: Request) -> None:
        """End the request in progress: the router's own code raised for it."""

    def expire(self) -> None:
        """End what has passed its deadline."""

    def relay(self, relay: Relay) -> None:
        """Let `relay` answer the request in progress."""

    def close_if_idle(self, seconds: float) -> None:
        """Close it if it has been idle for so long."""

    def stop(self) -> None:
        """End what runs, and close: the router is about to exit."""


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
        """True once discovery has spoken."""
        self.fleet_secrets = FleetSecrets(
            settings.fleet_secret,
            settings.fleet_secret_file,
            partial(metrics.file_reported, "fleet secret"),
        )
        self.ask_metrics: Callable[[Callable[[responses.Answer], None]], None] | None = None
        """Ask for the metrics, to be answered later, where other processes have some too."""
        self.poison = PoisonTable()
        failover = settings.failover
        self.transcripts = TranscriptBudget(failover.stream_bytes, failover.streams_bytes)
        self.tasks = SupervisedTasks()
        metrics.task_failures = self.tasks.failures
        metrics.defect = self.tasks.defect
        self.bodies = BodyBudget(settings.limits.buffered_bytes)
        metrics.body_bytes = lambda: self.bodies.used
        metrics.transcript_bytes = lambda: self.transcripts.used
        self.admission = Admission(
            settings.keys_file, settings.routers, partial(metrics.file_reported, "keys")
        )
        self.tenants = TenantMeter()
        self._salt = None if settings.shared_prompts else TenantSalt(self.fleet_secrets.hash_key)
        self.queue = RequestQueue(settings.waiting)
        self.queue.refused = self._waited_in_vain
        self.queue.defect = self.tasks.defect
        self.tokenizing = Tokenizing(
            settings.tokenizing, self.tasks.child(), self.fleet_secrets.hash_key
        )
        self.tracer: Tracer | None = None
        if settings.otlp_endpoint is not None:
            self.tracer = Tracer(
                settings.otlp_endpoint, settings.trace_ratio, metrics.spans_were_dropped
            )
        self.signals = Signals(settings.slo, settings.slo_by_model)
        self.access_log = access_log
        self._relay_services = RelayServices(
            failover,
            self.poison,
            self.queue,
            self.tokenizing,
            self.transcripts,
            self.tasks,
            RequestAccounting(
                self.tokenizing,
                self.queue,
                self.tenants,
                self.signals,
                self.tracer,
                access_log,
                self.tasks.defect,
            ),
            self.fleet_secrets,
        )
        self._local = LocalRoutes(fleet, self.admission, metrics, self._not_ready, self.warnings)
        self._cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self._clients: set[GatewayClient] = set()
        metrics.connections = lambda: len(self._clients) + self.handshakes
        self.handshakes = 0
        """TLS handshakes under way."""
        self._full = responses.error(
            503, "The router has all the connections it may.", "overloaded", retry_after=1
        )

    @property
    def ready(self) -> bool:
        """Return whether requests are answered, or may wait: a file lists replicas, so it takes one
        that serves; in a cluster they come and go, and knowing of their models is enough."""
        waits = self.settings.config is None and self.knows_models
        known = self.fleet.ready or waits
        return known and self.serves and not (self.stopping or self.tasks.down)

    def warnings(self) -> list[str]:
        """Return sentences on what is not as it should be, though requests are served."""
        stale = sorted(name for name, is_stale in self.metrics.stale.items() if is_stale)
        return [f"{name}: what is there now cannot be used, see the log" for name in stale]

    def _not_ready(self) -> str | None:
        """Return why the router is not ready; None if it is."""
        if self.ready:
            return None
        if down := self.tasks.down:
            return f"started again after a defect that the log names: {', '.join(sorted(down))}"
        return "stopping" if self.stopping else "no model has a ready replica"

    # Connections

    def connected(self, client: GatewayClient) -> responses.Answer | None:
        """Register a connection; return a refusal when there are too many."""
        self._clients.add(client)
        if len(self._clients) <= self.settings.max_connections:
            return None
        self.metrics.refused_connections += 1
        return self._full

    def handshake_began(self) -> bool:
        """Count a TLS handshake as a connection, until `handshake_ended`; return False when there
        are too many of both."""
        if len(self._clients) + self.handshakes >= self.settings.max_connections:
            self.metrics.refused_connections += 1
            return False
        self.handshakes += 1
        return True

    def handshake_ended(self) -> None:
        """Count it no more: it is a connection now, or nothing."""
        self.handshakes -= 1

    def disconnected(self, client: GatewayClient) -> None:
        """Remove a connection."""
        self._clients.discard(client)

    async def sweep(self) -> None:
        """Enforce deadlines, forever: one look at all connections costs less than a timer each."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for client in [client for client in self._clients if client.deadline < now]:
                try:
                    client.expire()
                except Exception as error:
                    self.tasks.defect("deadline", error)
                    client.abort(reset=True)

    def keep_models(self) -> None:
        """Forget what is known of models that are gone."""
        names = set(self.fleet.models)
        self.metrics.keep_models(names)
        self.signals.keep_models(names)
        self.queue.keep_models(self.fleet.models.values())
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

    def handle(self, client: GatewayClient, request: Request) -> None:
        """Answer the request, or start to relay it."""
        try:
            self._handle(client, request)
        except responses.RefusalError as refusal:
            self.answer(client, request, refusal.answer)
        except Exception as error:
            self.tasks.defect("request", error, request_id=request.request_id.decode())
            client.defect(request)

    def check_head(self, request: Request) -> None:
        """Check a request before its body is read. Raises RefusalError."""
        try:
            holder = self.admission.holder(request.credentials)
            if request.method != b"POST" or "POST" not in request.endpoint.methods:
                raise self._local.unwanted_body(request)
            if holder is not None and not holder.key.models:
                raise responses.RefusalError(self.admission.without_models(holder))
        except responses.RefusalError:
            if self._cors is not None:
                self._cors.see(request)
            raise
        except Exception as error:
            self.tasks.defect("request", error, request_id=request.request_id.decode())
            raise responses.RefusalError(failure_responses.defect()) from None

    def _handle(self, client: GatewayClient, request: Request) -> None:
        preflight = self._cors.see(request) if self._cors is not None else None
        if preflight is not None:
            self.answer(client, request, preflight)
        elif request.method == b"POST" and "POST" in request.endpoint.methods:
            self._route(client, request)
        elif self.ask_metrics is not None and self._local.is_metrics(request):
            self.ask_metrics(partial(self.answer, client, request))
        else:
            self.answer(client, request, self._local.answer(request))

    def _waited_in_vain(self, model: Served, reason: str) -> None:
        self.metrics.model(model.name).refusals[reason] += 1

    def refused(self, refusal: RequestError) -> None:
        """Account for something that was not a valid request."""
        self.metrics.model("").codes[refusal.status] += 1
        if self.access_log is not None:
            self.access_log.write(AccessRecord(status=refusal.status, reason=refusal.message))

    def _route(self, client: GatewayClient, request: Request) -> None:
        """Relay the request to its model. Raises RefusalError."""
        holder = self.admission.holder(request.credentials)
        if holder is None:
            request.send_credentials()
        envelope, form = _read(request)
        name = envelope.model
        if not name:
            raise _bad_body("`model` is missing: name the model to use.", "model")
        user = envelope.user
        target = self.fleet.find(name, user if isinstance(user, str) else None)
        if target is None:
            raise self._local.unknown_model(name, holder)
        is_form = form is not None
        media = media_in(request.body, request.endpoint, request.outline, form=is_form)
        if target.renamed:
            _rename(request, form, target.model.name)
        ticket = self.admission.admit(holder, envelope, len(request.body), name, target, media)
        if self._salt is not None and ticket.key_id:
            self._add_salt(self._salt, request, envelope, ticket)
        request.buffer = None
        query = Query(request, envelope, lora=target.adapter, media=media)
        model = target.model
        metrics = self.metrics.model(model.name)
        if self.tracer is not None:
            self.tracer.began(request)
        client.relay(Relay(self._relay_services, client, query, model, metrics, ticket))

    def _add_salt(
        self, salt: TenantSalt, request: Request, envelope: Envelope, ticket: Ticket
    ) -> None:
        """Keep the prompt out of other tenants' caches. Raises RefusalError."""
        try:
            salt.add(request, envelope, ticket.tenant)
        except BodyError as error:
            ticket.settle(0, time.monotonic(), time.time())
            raise _bad_body(str(error), error.param) from None

    def answer(self, client: GatewayClient, request: Request, answer: responses.Answer) -> None:
        """Answer a request that no replica answers."""
        client.answer(request, answer)
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


def _read(request: Request) -> tuple[Envelope, Form | None]:
    """Read what decides where a request goes, and the fields of a form. Raises RefusalError."""
    form_in = form_type(request)
    scan, request.scan = request.scan, None
    try:
        if form_in:
            form = scan.end() if isinstance(scan, FormScan) else form_of(request.body, form_in)
            return read_form(form), form
        outline_scan = scan if isinstance(scan, BodyScan) else None
        if outline_scan is None and not (is_bracketed(request.body) and is_available()):
            return decode_envelope(request.body), None
        outline = outline_scan.end() if outline_scan else outline_of(request.body, OUTLINED)
        request.outline = outline
        return read_outline(request.body, outline), None
    except FormError as error:
        raise _bad_body(str(error)) from None
    except BodyError as error:
        raise _bad_body(str(error), error.param) from None
    except _UNREADABLE as error:
        raise _bad_body(*refusal(request.body, error)) from None


def _rename(request: Request, form: Form | None, name: str) -> None:
    """Name the model in the body as its replicas do. Raises RefusalError."""
    outline = request.outline
    if form is not None:
        rename_form(request, form, name)
        return
    if outline is not None:
        replace_member(request, outline, "model", msgspec.json.encode(name))
        return
    try:
        request.body = rename(request.body, name)
    except DenseBodyError as error:
        raise _bad_body(str(error)) from None
    except _UNREADABLE as error:
        raise _bad_body(*refusal(request.body, error)) from None


def _bad_body(message: str, param: str | None = None) -> responses.RefusalError:
    return responses.RefusalError(responses.error(400, message, "invalid_body", param))
