"""Views of the fleet for the admin port, as JSON objects."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from kvasir_router.admin.statistics import Statistics
from kvasir_router.fleet.circuit_breaker import BreakerState
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.telemetry.metric_families import Family, by_labels


class _Counts:
    """Requests, tokens and failures by model and replica, as the metrics have them."""

    def __init__(self, families: Sequence[Family]) -> None:
        self.connections = int(by_labels(families, "client_connections").get((), 0))
        self.requests: Counter[str] = Counter()
        self.served: Counter[tuple[str, str]] = Counter()
        self.failures: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self.tokens: Counter[tuple[str, str]] = Counter()
        for (_, (_, model)), count in by_labels(families, "requests_total").items():
            self.requests[model] += int(count)
        for ((_, kind), (_, model)), count in by_labels(families, "tokens_total").items():
            self.tokens[model, kind] = int(count)
        for ((_, model), (_, replica)), count in by_labels(
            families, "replica_requests_total"
        ).items():
            self.served[model, replica] = int(count)
        for ((_, model), (_, reason), (_, replica)), count in by_labels(
            families, "replica_failures_total"
        ).items():
            self.failures[model, replica][reason] = int(count)


def fleet_view(gateway: Gateway, statistics: Statistics) -> dict[str, Any]:
    """Every model with its replicas: health, load and failures; counts as in the metrics."""
    counts = _Counts(statistics.families())
    keyring = gateway.admission.keyring
    return {
        "ready": gateway.ready,
        "connections": counts.connections,
        "keys": None if keyring is None else len(keyring),
        "models": [
            _model(model, counts, statistics.waiting(model)[0])
            for model in gateway.fleet.models.values()
        ],
    }


def serving_view(gateway: Gateway) -> dict[str, Any]:
    """`/serving`: the ids of all replicas that get requests now; on Kubernetes these are
    `<pod's uid>/<restarts>`; and why others do not serve, by their ids."""
    models = gateway.fleet.models.values()
    replicas = [each for _, each in gateway.fleet.replicas()]
    return {
        "serving": sorted(replica for model in models for replica in model.serving),
        "problems": {each.id: problem for each in replicas if (problem := _problem(each))},
    }


def _problem(replica: Replica) -> str:
    """Return why a replica does not serve, of engines of the fleet only what they cannot tell
    themselves; "" if it does, as far as is known."""
    closed = replica.breaker.state is BreakerState.CLOSED
    if replica.problem or closed or replica.spec.upstream is None:
        return replica.problem
    reasons = ", ".join(sorted(replica.failures)[:4])
    return f"requests to it fail ({reasons})"


def _model(model: Model, counts: _Counts, waiting: int) -> dict[str, Any]:
    return {
        "name": model.name,
        "aliases": list(model.spec.aliases),
        "adapters": list(model.spec.adapters),
        "policy": model.policy.spec.name,
        "ready": model.ready,
        "waiting": waiting,
        "requests": counts.requests[model.name],
        "prompt_tokens": counts.tokens[model.name, "prompt"],
        "cached_tokens": counts.tokens[model.name, "cached"],
        "completion_tokens": counts.tokens[model.name, "completion"],
        "replicas": [_replica(model, replica, counts) for replica in model.replicas.values()],
    }


def _replica(model: Model, replica: Replica, counts: _Counts) -> dict[str, Any]:
    return {
        "id": replica.id,
        "address": replica.pool.authority,
        "engine": replica.spec.engine.value,
        "health": replica.health.value,
        "breaker": replica.breaker.state.value,
        "draining": replica.draining,
        "departure": replica.departure.value,
        "adapters": None if replica.adapters is None else list(replica.adapters),
        "full": replica.full,
        "in_flight": replica.in_flight,
        "served": counts.served[model.name, replica.id],
        "problem": replica.problem,
        "failures": counts.failures.get((model.name, replica.id), {}),
        "served_names": list(replica.served_names),
        "max_model_len": replica.max_model_len,
        "kv_capacity": replica.load.kv_capacity,
        "load": _load(replica),
        "load_stream": replica.load_stream_state.value,
        "feeds": dict(replica.feeds),
    }


def _load(replica: Replica) -> dict[str, Any] | None:
    """Return the replica's last load report; None when it never sent any."""
    report = replica.load.report
    if report is None:
        return None
    return {
        "running": report.running,
        "waiting": report.waiting,
        "inflight_tokens": report.inflight_tokens,
        "prefill_tokens": replica.load.prefill_tokens,
        "kv_usage": round(report.kv_usage, 4),
        "age_seconds": round(time.monotonic() - report.at, 3),
        "stale": replica.load.stale,
    }
