"""Metrics of the processes themselves, and of what they tell each other."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.telemetry.router_metrics import counter, gauge
from kvasir_router.workers.replication.publisher import Publisher
from kvasir_router.workers.replication.subscriber import IndexSubscriber


class PublisherCollector(Collector):
    """Metrics of the index process."""

    def __init__(self, hub: Publisher) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Metric]:
        """Collector.collect."""
        workers = gauge("workers", "Worker processes that are connected to the index process.")
        workers.add_metric((), len(self._hub.peers))
        lagged = counter("worker_lags", "Times that a worker was too slow for the news.")
        lagged.add_metric((), self._hub.lagged)
        yield from (workers, lagged)


class SubscriberCollector(Collector):
    """Metrics of a worker."""

    def __init__(self, link: IndexSubscriber) -> None:
        self._link = link

    def collect(self) -> Iterator[Metric]:
        """Collector.collect."""
        dropped = counter(
            "worker_untold", "Messages that workers dropped, as the index process was not reading."
        )
        dropped.add_metric((), self._link.dropped)
        away = counter("index_process_losses", "Times that a worker missed the index process.")
        away.add_metric((), self._link.losses)
        yield from (dropped, away)
