"""Metrics of the fleet: what replicas do, and which retries their models' budgets refused."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from kvasir_router.discovery.specs import Departure
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.replica import Health
from kvasir_router.telemetry.router_metrics import counter, gauge


def fleet_families(fleet: Fleet) -> Iterator[Metric]:
    """Yield the numbers of models and replicas."""
    labels = ("model", "replica")
    replicas = {(model.name, each.id): each for model, each in fleet.replicas()}
    ready = {
        key: each.health is Health.READY and not each.draining for key, each in replicas.items()
    }
    yield gauge("replica_ready", "1 when the replica gets requests.", ready, *labels)
    leaving = {key: each.departure is not Departure.NONE for key, each in replicas.items()}
    text = "1 while the replica is expected to end: others get its requests where they have room."
    yield gauge("replica_leaving", text, leaving, *labels)
    in_flight = {key: each.in_flight for key, each in replicas.items()}
    yield gauge("replica_in_flight", "Requests in flight to the replica.", in_flight, *labels)
    served = {key: each.served for key, each in replicas.items()}
    yield counter("replica_requests", "Requests sent to the replica.", served, *labels)
    failures = {key: each.failures for key, each in replicas.items()}
    text = "Requests that failed at the replica."
    yield counter("replica_failures", text, failures, *labels, "reason")
    samples = {
        model.name: model.split.samples()
        for model in fleet.models.values()
        if model.split is not None
    }
    counted = {
        (name, revision, outcome): getattr(getattr(each, revision), field)
        for name, each in samples.items()
        for revision in ("canary", "stable")
        for outcome, field in (("ok", "answers"), ("error", "errors"), ("refused", "refused"))
    }
    text = "Attempts that a canary's analysis counts now, by revision and outcome."
    yield gauge("canary_samples", text, counted, "model", "revision", "outcome")
    weights = {
        model.name: model.split.spec.weight or 0.0
        for model in fleet.models.values()
        if model.split is not None
    }
    yield gauge("canary_weight", "Share of requests that a canary gets.", weights, "model")
    refused = {model.name: model.budget.refused for model in fleet.models.values()}
    text = "Retries and hedges that the budget did not allow."
    yield counter("retry_budget_refusals", text, refused, "model")
