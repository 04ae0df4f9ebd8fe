"""All that tells a fleet what exists and how it does: discovery, probes and feeds."""

from collections.abc import Callable
from functools import partial

import structlog

from kvasir_router.discovery.file_source import FileSource
from kvasir_router.discovery.specs import DiscoverySource
from kvasir_router.feeds.feed_metrics import feed_families
from kvasir_router.feeds.feeds import Feeds
from kvasir_router.file_watch import FOLLOW_SECONDS
from kvasir_router.fleet.health_monitor import HealthMonitor
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.policy.registry import check_policy, policy_names
from kvasir_router.process.components import RouterComponents
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.wire.tls import ReplicaTrust

_log = structlog.get_logger("kvasir_router.discovery")


class FleetWatch:
    """Keep the fleet of `router` as its source says, and each replica as it is seen."""

    def __init__(self, router: RouterComponents) -> None:
        settings, fleet, secrets = router.settings, router.fleet, router.gateway.fleet_secrets
        self._router = router
        tasks = router.gateway.tasks.child()
        self._health = HealthMonitor(settings.probing, secrets, tasks.child())
        self._feeds = Feeds(
            settings.feeding,
            secrets,
            ReplicaTrust.of(router.replica_tls),
            tasks.child(),
            suspect=self._health.suspect,
        )
        self._source = _make_source(settings, router.metrics.discovery_reported, tasks.child())
        self._tasks = tasks
        fleet.came = self._came
        fleet.went = self._went
        fleet.emptied = self._feeds.emptied
        fleet.policy_changed = self._feeds.policy_changed
        fleet.identity_changed = self._feeds.identity_changed
        self.replay_events = self._feeds.replay_events
        router.metrics.register(partial(feed_families, fleet))

    async def start(self) -> None:
        """Raise DiscoveryError when the source is refused."""
        snapshot = await self._source.load()
        if snapshot is not None:
            self._router.apply(snapshot)
        every = None if self._router.settings.config is None else FOLLOW_SECONDS
        self._tasks.keep("discovery", self._follow, required=True, every=every)

    async def stop(self) -> None:
        """See nothing more."""
        await self._tasks.stop()
        await self._health.stop()
        await self._feeds.stop()

    async def _follow(self) -> None:
        async for snapshot in self._source.watch():
            try:
                self._router.apply(snapshot)
            except Exception:  # the next snapshot may be another matter
                self._router.metrics.discovery_reported(False)
                _log.exception("what discovery says cannot be applied")

    def _came(self, model: Model, replica: Replica) -> None:
        self._health.watch(model, replica)
        self._feeds.watch(model, replica)

    def _went(self, model: Model, replica: Replica) -> None:
        self._health.forget_replica(model, replica)
        self._feeds.forget_replica(model, replica)


def _make_source(
    settings: RouterSettings, reported: Callable[[bool], None], tasks: SupervisedTasks
) -> DiscoverySource:
    if settings.config is not None:
        return FileSource(
            settings.config,
            reported,
            partial(check_policy, defaults=settings.policy_options),
            has_secret=bool(settings.fleet_secret),
        )
    # Imported here: a router with a file does without the Kubernetes client
    from kvasir_router.discovery.kubernetes_source import KubernetesSource

    return KubernetesSource(settings.scope, reported, policy_names(), tasks=tasks)
