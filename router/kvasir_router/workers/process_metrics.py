"""Metrics of the processes themselves, and of what they tell each other."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from kvasir_router.telemetry.router_metrics import counter, gauge
from kvasir_router.workers.replication.publisher import Publisher
from kvasir_router.workers.replication.subscriber import IndexSubscriber
from kvasir_router.workers.shared_memory.shared_limits import SharedLimitTable


def publisher_families(publisher: Publisher) -> Iterator[Metric]:
    """Yield the index process's numbers."""
    text = "Worker processes that are connected to the index process."
    yield gauge("workers", text, len(publisher.workers))
    yield counter("worker_lags", "Times that a worker was too slow for the news.", publisher.lagged)


def subscriber_families(link: IndexSubscriber) -> Iterator[Metric]:
    """Yield a worker's numbers."""
    text = "Messages that workers dropped, as the index process was not reading."
    yield counter("worker_untold", text, link.dropped)
    text = "Times that a worker missed the index process."
    yield counter("index_process_losses", text, link.losses)


def limit_families(table: SharedLimitTable) -> Iterator[Metric]:
    """Yield the keys whose limits are not common to all workers."""
    text = "Keys that each worker limits by itself, since the common table is full."
    yield gauge("unshared_limits", text, len(table.unshared))
