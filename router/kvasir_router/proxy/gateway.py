"""Routing of each request of a process, and all that it needs for that."""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from kvasir_router.admission.admission_metrics import TenantMeter
from kvasir_router.admission.keyring import Holder
from kvasir_router.admission.make_admission import make_admission
from kvasir_router.admission.model_queue import Served
from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.admission.tenant_salt import TenantSalt
from kvasir_router.admission.ticket import Ticket
from kvasir_router.discovery.specs import OWN_ENGINES
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.poison_table import PoisonTable
from kvasir_router.fleet.target import Target
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.kept_responses.kept_responses import (
    KeptResponses,
    previous_response,
    withdraw_mark,
)
from kvasir_router.kept_responses.open_store import make_store
from kvasir_router.kept_responses.response_routes import answer_for_one, is_for_one
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.proxy.accounting import RequestAccounting
from kvasir_router.proxy.client.client_registry import ClientRegistry
from kvasir_router.proxy.client.gateway_client import GatewayClient
from kvasir_router.proxy.cors import Cors
from kvasir_router.proxy.failures import failure_responses
from kvasir_router.proxy.fallbacks import Fallbacks, answers_instead, model_line
from kvasir_router.proxy.local_routes import LocalRoutes, may_use
from kvasir_router.proxy.relay_services import RelayServices
from kvasir_router.proxy.request_reading import (
    add_salt,
    bad_body,
    query_of_another,
    read_request,
    rename_model,
)
from kvasir_router.proxy.transcript import TranscriptBudget
from kvasir_router.scaling.signals import Signals
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.telemetry.access_log import AccessLog, AccessRecord
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.tokenizing.tokenizing import Tokenizing
from kvasir_router.tracing.tracer import Tracer
from kvasir_router.wire import responses
from kvasir_router.wire.http_request import BodyBudget, Request, RequestError
from kvasir_router.wire.long_bodies.media import media_in
from kvasir_router.wire.query import Query


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
        self.admission = make_admission(settings, metrics)
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
        store = make_store(settings.responses)
        self.responses: KeptResponses | None = None
        if store is not None:
            self.responses = KeptResponses(store, self.tasks, settings.limits.body_bytes)
        self._local = LocalRoutes(fleet, self.admission, metrics, self._not_ready, self.warnings)
        self.clients = ClientRegistry(settings, metrics, self.tasks)
        self._cors = Cors(settings.cors_origins) if settings.cors_origins else None

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

    def keep_models(self) -> None:
        """Forget what is known of models that are gone."""
        names = set(self.fleet.models)
        self.metrics.keep_models(names)
        self.signals.keep_models(names)
        self.queue.keep_models(self.fleet.models.values())
        self.tokenizing.keep_models(self.fleet.models.values())

    async def drain(self, timeout: float) -> None:
        """Wait until the connections are closed, at most `timeout` seconds; then end them."""
        self.stopping = True
        await self.clients.drain(timeout)

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
            if holder is not None and holder.uses_nothing:
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
        elif is_for_one(request) and request.method != b"OPTIONS":
            owner = self._owner(self.admission.holder(request.credentials))
            self._answer_later(
                client, request, self._answer_for_one(client, request, owner), "kept response"
            )
        elif request.method == b"POST" and "POST" in request.endpoint.methods:
            self._route(client, request)
        elif self.ask_metrics is not None and self._local.is_metrics(request):
            self.ask_metrics(partial(self.answer, client, request))
        else:
            self.answer(client, request, self._local.answer(request))

    def _waited_in_vain(self, model: Served, reason: str) -> None:
        self.metrics.model(model.name).refusals[reason] += 1

    def refused(self, refusal: RequestError, client: str) -> None:
        """Account for something that was not a valid request, of a client by its address."""
        self.metrics.model("").codes[refusal.status] += 1
        if self.access_log is not None:
            record = AccessRecord(status=refusal.status, reason=refusal.message, client=client)
            self.access_log.write(record)

    def _route(self, client: GatewayClient, request: Request, *, continued: bool = False) -> None:
        """Relay the request to its model; `continued`: what its conversation was before is in its
        body. Raises RefusalError."""
        holder = self.admission.holder(request.credentials)
        envelope, form = read_request(request)
        name = envelope.model
        if not name:
            raise bad_body("`model` is missing: name the model to use.", "model")
        user = envelope.user
        target = self._local.target(name, user if isinstance(user, str) else None, holder)
        responses_kept = self._responses_for(client, request, target)
        if responses_kept is not None and not continued:
            previous = previous_response(request, envelope)
            if previous is not None:
                going = self._continue(responses_kept, client, request, holder, previous)
                self._answer_later(client, request, going, "conversation")
                return
        if holder is None:
            request.send_credentials()
        media = media_in(request.body, request.endpoint, request.outline, form=form is not None)
        if target.renamed:
            rename_model(request, form, target.model.name)
        computed = request.endpoint.computed
        ticket = self.admission.admit(
            holder, envelope, len(request.body), name, target, media, computed=computed
        )
        salted = self._salt is not None and add_salt(self._salt, request, envelope, ticket)
        request.buffer = None
        query = Query(request, envelope, lora=target.adapter, media=media)
        query.key_id, query.salted = ticket.key_id, salted
        if responses_kept is not None:
            responses_kept.mark(query, self._owner(holder))
        elif request.endpoint.events == "response":
            withdraw_mark(request)
        if self.tracer is not None:
            self.tracer.began(request)
        fallbacks = self._fallbacks(client, query, target, holder, ticket)
        self._relay(client, query, target, ticket, fallbacks, 0.0)

    def _relay(
        self,
        client: GatewayClient,
        query: Query,
        target: Target,
        ticket: Ticket,
        fallbacks: Fallbacks | None,
        received: float,
    ) -> None:
        target.model.decide(query)  # before its prompt is read, and its messages freed
        made, metrics = self._relay_services, self.metrics.model(target.model.name)
        client.carry(made, query, target.model, metrics, ticket, fallbacks, received)

    def _fallbacks(
        self,
        client: GatewayClient,
        query: Query,
        first: Target,
        holder: Holder | None,
        ticket: Ticket,
    ) -> Fallbacks | None:
        if not (first.model.spec.fallbacks and query.request.endpoint.computed):
            return None  # another model's token ids are other tokens
        query.request.answer_lines += model_line(first.model.name)
        user = query.envelope.user if isinstance(query.envelope.user, str) else None

        def find(name: str) -> Target | None:
            found = self.fleet.find(name, user)
            return found if found is not None and may_use(holder, name, found) else None

        def go(target: Target, fallbacks: Fallbacks, received: float) -> None:
            try:
                kept = self._responses_for(client, query.request, target) is not None
                other = query_of_another(query, target, keeps=kept)
                answers_instead(query.request, fallbacks.before.name, target.model.name)
                self._relay(client, other, target, ticket, fallbacks, received)
            except Exception as error:
                self.tasks.defect("request", error, model=target.model.name)
                ticket.settle(0, time.monotonic(), time.time())
                self.answer(client, query.request, failure_responses.defect())

        return Fallbacks(first.model, find, go)

    def _responses_for(
        self, client: GatewayClient, request: Request, target: Target
    ) -> KeptResponses | None:
        """Return where an answer is kept, if it is a response, and of engines that keep none."""
        if request.endpoint.events != "response" or not client.sees_answers:
            return None
        own = all(each.engine in OWN_ENGINES for each in target.model.spec.replicas)
        return self.responses if own else None

    def _owner(self, holder: Holder | None) -> str:
        return "" if holder is None else holder.owner

    async def _continue(
        self,
        kept: KeptResponses,
        client: GatewayClient,
        request: Request,
        holder: Holder | None,
        previous: str,
    ) -> None:
        """Relay a request that goes on with a kept response."""
        body = await kept.continued(self._owner(holder), previous, request.body)
        if client.gone:
            return
        try:
            client.grown(max(len(body) - len(request.body), 0))
        except RequestError as error:
            raise responses.RefusalError(
                responses.error(error.status, error.message, error.code, None, error.retry_after)
            ) from None
        request.body = body
        request.buffer = request.scan = request.outline = None
        self._route(client, request, continued=True)

    async def _answer_for_one(self, client: GatewayClient, request: Request, owner: str) -> None:
        answer = await answer_for_one(self.responses, owner, request)
        if not client.gone:
            self.answer(client, request, answer)

    def _answer_later(
        self,
        client: GatewayClient,
        request: Request,
        work: Coroutine[Any, Any, None],
        name: str,
    ) -> None:
        """Do `work` for a request beside all others."""
        self.tasks.run(name, self._refusing(client, request, work))

    async def _refusing(
        self, client: GatewayClient, request: Request, work: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await work
        except responses.RefusalError as refusal:
            if not client.gone:
                self.answer(client, request, refusal.answer)
        except Exception as error:
            self.tasks.defect("request", error, request_id=request.request_id.decode())
            client.defect(request)

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
                    client=request.client,
                )
            )
