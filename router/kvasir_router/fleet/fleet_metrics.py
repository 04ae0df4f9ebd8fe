"""Metrics of the fleet: what replicas do, and which retries their models' budgets refused."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.replica import Health
from kvasir_router.telemetry.router_metrics import counter, gauge


class FleetCollector(Collector):
    """Make the numbers of models and replicas into metric families at each scrape."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """Collector.collect."""
        labels = ("model", "replica")
        ready = gauge("replica_ready", "1 when the replica gets requests.", *labels)
        in_flight = gauge("replica_in_flight", "Requests in flight to the replica.", *labels)
        served = counter("replica_requests", "Requests sent to the replica.", *labels)
        failures = counter(
            "replica_failures", "Requests that failed at the replica.", *labels, "reason"
        )
        for model, replica in self._fleet.replicas():
            key = (model.name, replica.id)
            is_ready = replica.health is Health.READY and not replica.draining
            ready.add_metric(key, is_ready)
            in_flight.add_metric(key, replica.in_flight)
            served.add_metric(key, replica.served)
            for reason, count in replica.failures.items():
                failures.add_metric((*key, reason), count)
        refusals = counter(
            "retry_budget_refusals", "Retries and hedges that the budget did not allow.", "model"
        )
        for model in self._fleet.models.values():
            refusals.add_metric((model.name,), model.budget.refused)
        yield from (ready, in_flight, served, failures, refusals)
