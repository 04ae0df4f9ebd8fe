"""Metrics of what engines report of themselves, and of how their feeds fare."""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.fleet.fleet import Fleet
from kvasir_router.telemetry.router_metrics import counter, gauge


class FeedCollector(Collector):
    """Series of each replica; they go with it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """Load as last reported, its age, and counts of what happened."""
        labels = ("model", "replica")
        running = gauge("replica_reported_running", "Sequences that it runs.", *labels)
        waiting = gauge("replica_reported_waiting", "Requests that wait in it.", *labels)
        tokens = gauge("replica_prefill_tokens", "Prompt tokens it has yet to compute.", *labels)
        usage = gauge("replica_kv_usage", "Part of its KV cache that requests hold.", *labels)
        capacity = gauge("replica_kv_capacity_tokens", "Tokens its KV cache holds.", *labels)
        age = gauge("replica_load_age_seconds", "Since its last word on its load.", *labels)
        events = counter("replica_feed_events", "What happened in its feeds.", *labels, "event")
        for model, replica in self._fleet.replicas():
            key = (model.name, replica.id)
            load = replica.load
            tokens.add_metric(key, load.prefill_tokens)
            capacity.add_metric(key, load.kv_capacity)
            if load.report is not None:
                running.add_metric(key, load.report.running)
                waiting.add_metric(key, load.report.waiting)
                usage.add_metric(key, load.report.kv_usage)
                age.add_metric(key, time.monotonic() - load.report.at)
            for event, count in replica.feeds.items():
                events.add_metric((*key, event), count)
        yield from (running, waiting, tokens, usage, capacity, age, events)
