"""Components of every process of a router: the fleet, the gateway to it, its numbers and its
keys."""

import asyncio
import secrets
import ssl
import sys
from collections.abc import Iterator
from functools import partial
from math import inf

from kvasir_router.admission.admission_metrics import key_families, queue_families
from kvasir_router.admission.router_count import follow_peers
from kvasir_router.discovery.specs import PolicySpec, ReplicaSpec, Snapshot
from kvasir_router.file_watch import FOLLOW_SECONDS
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.fleet_metrics import fleet_families
from kvasir_router.fleet.policy import Policy
from kvasir_router.index.index_metrics import index_families
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.kept_responses.response_metrics import response_families
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.policy.registry import make_policy
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.spend.open_spend import make_ledger
from kvasir_router.telemetry.access_log import AccessLog, LogStream
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.tokenizing.tokenizing_metrics import tokenizing_families
from kvasir_router.wire.tls import client_context, context_for
from kvasir_router.wire.upstream_pool import ConnectionPool

UPSTREAM_CONNECTION_SECONDS = 300.0
"""Age from which on a connection to an upstream URL is not used again: its name may have come to
mean another address."""


class RouterComponents:
    """Neither listens to clients nor watches replicas by itself."""

    def __init__(
        self, settings: RouterSettings, log_to: LogStream | None = None, run: str = ""
    ) -> None:
        """The access log goes to `log_to`, or to stdout; `run`: random id that the processes of a
        router share."""
        self.settings = settings
        self.fleet = Fleet(
            self._make_policy, self._make_pool, settings.max_in_flight, settings.engine_queue
        )
        self.metrics = Metrics()
        self._access_log: AccessLog | None = None
        if settings.access_log:
            output = log_to or sys.stdout.buffer
            self._access_log = AccessLog(output, self.metrics.log_line_dropped)
        self.gateway = Gateway(settings, self.fleet, self.metrics, self._access_log)
        self.fleet.room = self.gateway.queue.room
        self.fleet.awake_since = self.gateway.tasks.awake_since
        failures = self.gateway.tasks.failures
        self.fleet.policy_raised = lambda: failures.update(("policy",))
        self.spend = make_ledger(settings.spend, run or secrets.token_hex(8))
        if self.spend is not None and not self.gateway.admission.is_open:
            self.gateway.tenants.spent = self.spend.used
            self.gateway.admission.count_elsewhere(self.spend.elsewhere)
        self._register_metrics()
        self.replica_tls = client_context(settings.tls.replica_ca)

    async def load_keys(self) -> None:
        """Read the files of keys and issuers and the fleet secret, now and whenever they change.
        Raises YamlFileError, or StoreError where spend is kept in a file that cannot be used."""
        tasks, fleet = self.gateway.tasks, self.gateway.fleet_secrets
        if fleet.is_file:
            await fleet.load()
            tasks.keep("fleet secret", fleet.follow, required=True, every=FOLLOW_SECONDS)
        if self.spend is not None:
            await self.spend.open()
            tasks.keep("spend", self.spend.follow)
        admission = self.gateway.admission
        if admission.keyring is not None:
            await admission.keyring.load()
            tasks.keep("key file", admission.keyring.follow, required=True, every=FOLLOW_SECONDS)
        if admission.tokens is not None:
            await admission.tokens.load()
            tasks.keep("issuer file", admission.tokens.follow, required=True, every=FOLLOW_SECONDS)
            tasks.keep("issuer keys", admission.tokens.fetch_all, every=FOLLOW_SECONDS)
        if (peers := self.settings.routers_dns) and not admission.is_open:
            tasks.keep("peers", partial(follow_peers, admission.share, peers))

    def apply(self, snapshot: Snapshot) -> None:
        """Apply a snapshot of what exists now."""
        self.fleet.apply(snapshot)
        self.gateway.keep_models()
        self.gateway.knows_models = True

    async def close(self) -> None:
        """Close everything, when nothing is under way any more."""
        await self.gateway.tasks.stop()
        self.fleet.apply(())
        if self._access_log is not None:
            self._access_log.close()
        await self.gateway.tokenizing.stop()
        if self.spend is not None:
            await self.spend.close()
        if self.gateway.responses is not None:
            await self.gateway.responses.store.close()
        if self.gateway.tracer is not None:
            await asyncio.to_thread(self.gateway.tracer.close)

    def _register_metrics(self) -> None:
        metrics, gateway = self.metrics, self.gateway
        metrics.register(partial(fleet_families, self.fleet))
        metrics.register(partial(tokenizing_families, gateway.tokenizing))
        metrics.register(partial(queue_families, self.fleet, metrics, gateway.queue))
        metrics.register(partial(key_families, gateway.admission, gateway.tenants))
        if self.spend is not None:
            metrics.register(self.spend.families)
        if gateway.responses is not None:
            metrics.register(partial(response_families, gateway.responses))
        metrics.register(lambda: index_families(self._indexes()))

    def _indexes(self) -> Iterator[tuple[str, ModelIndex]]:
        """Yield the indexes of the models whose policy has one, by the model's name."""
        for model in self.fleet.models.values():
            sink = model.policy.sink
            if isinstance(sink, ModelIndex):
                yield model.name, sink

    def _make_policy(self, spec: PolicySpec | None) -> Policy:
        """Return a new policy, the router's own for None. Raises ValueError."""
        settings = self.settings
        return make_policy(spec or PolicySpec(settings.policy), settings.policy_options)

    def _make_pool(self, spec: ReplicaSpec) -> ConnectionPool:
        timeouts = self.settings.timeouts
        return ConnectionPool(
            spec.host,
            spec.port,
            connect_timeout=timeouts.connect,
            idle_timeout=timeouts.upstream_idle,
            tls=self._tls_for(spec) if spec.tls else None,
            limit=self.gateway.tasks.limit,
            server_name=(spec.upstream.server_name or None) if spec.upstream else None,
            max_age=UPSTREAM_CONNECTION_SECONDS if spec.upstream else inf,
        )

    def _tls_for(self, spec: ReplicaSpec) -> ssl.SSLContext:
        """Return what its certificate is checked with; discovery has read its authorities."""
        authorities = spec.upstream.authorities if spec.upstream else ""
        return context_for(authorities) if authorities else self.replica_tls
