"""Metrics of what engines report of themselves, and of how their feeds fare."""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from kvasir_router.fleet.fleet import Fleet
from kvasir_router.telemetry.router_metrics import counter, gauge

_LABELS = ("model", "replica")


def feed_families(fleet: Fleet) -> Iterator[Metric]:
    """Yield load as last reported, its age, and counts of what happened; series of a replica go
    with it."""
    replicas = {(model.name, each.id): each for model, each in fleet.replicas()}
    reports = {
        key: report for key, each in replicas.items() if (report := each.load.report) is not None
    }
    running = {key: report.running for key, report in reports.items()}
    yield gauge("replica_reported_running", "Sequences that it runs.", running, *_LABELS)
    waiting = {key: report.waiting for key, report in reports.items()}
    yield gauge("replica_reported_waiting", "Requests that wait in it.", waiting, *_LABELS)
    tokens = {key: each.load.prefill_tokens for key, each in replicas.items()}
    yield gauge("replica_prefill_tokens", "Prompt tokens it has yet to compute.", tokens, *_LABELS)
    usage = {key: report.kv_usage for key, report in reports.items()}
    yield gauge("replica_kv_usage", "Part of its KV cache that requests hold.", usage, *_LABELS)
    capacity = {key: each.load.kv_capacity for key, each in replicas.items()}
    yield gauge("replica_kv_capacity_tokens", "Tokens its KV cache holds.", capacity, *_LABELS)
    age = {key: time.monotonic() - report.at for key, report in reports.items()}
    yield gauge("replica_load_age_seconds", "Since its last word on its load.", age, *_LABELS)
    events = {key: each.feeds for key, each in replicas.items()}
    yield counter("replica_feed_events", "What happened in its feeds.", events, *_LABELS, "event")
