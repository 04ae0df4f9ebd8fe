"""Views of the fleet for the admin port, as JSON objects."""

import time
from typing import Any

from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.gateway import Gateway


def fleet_view(gateway: Gateway) -> dict[str, Any]:
    """Every model with its replicas: health, load and failures."""
    keyring = gateway.admission.keyring
    return {
        "ready": gateway.ready,
        "connections": gateway.metrics.connections,
        "keys": None if keyring is None else len(keyring),
        "models": [_model(gateway, model) for model in gateway.fleet.models.values()],
    }


def serving_view(gateway: Gateway) -> dict[str, list[str]]:
    """`/serving`: the ids of all replicas that get requests now; on Kubernetes these are
    `<pod's uid>/<restarts>`."""
    models = gateway.fleet.models.values()
    return {"serving": sorted(replica for model in models for replica in model.serving)}


def scaling_view(gateway: Gateway, model: Model) -> dict[str, Any]:
    """`/scaling/{model}`."""
    queue = gateway.queue
    return gateway.signals.report(model, queue.waiting(model), queue.waiting_tokens(model))


def _model(gateway: Gateway, model: Model) -> dict[str, Any]:
    metrics = gateway.metrics.model(model.name)
    return {
        "name": model.name,
        "aliases": list(model.spec.aliases),
        "adapters": list(model.spec.adapters),
        "policy": model.policy.spec.name,
        "ready": model.ready,
        "waiting": gateway.queue.waiting(model),
        "requests": sum(metrics.codes.values()),
        "prompt_tokens": metrics.prompt_tokens,
        "cached_tokens": metrics.cached_tokens,
        "completion_tokens": metrics.completion_tokens,
        "replicas": [_replica(replica) for replica in model.replicas.values()],
    }


def _replica(replica: Replica) -> dict[str, Any]:
    return {
        "id": replica.id,
        "address": replica.pool.authority,
        "engine": replica.spec.engine.value,
        "health": replica.health.value,
        "breaker": replica.breaker.state.value,
        "draining": replica.draining,
        "full": replica.full,
        "in_flight": replica.in_flight,
        "served": replica.served,
        "failures": dict(replica.failures),
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
