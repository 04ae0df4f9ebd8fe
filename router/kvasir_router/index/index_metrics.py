"""Metrics of the indexes: how large they are, and how often they were right."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.index.hit_check import HitCheck
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.telemetry.router_metrics import counter, gauge


class IndexCollector(Collector):
    """Make the numbers of all indexes into metric families at each scrape."""

    def __init__(self, indexes: Callable[[], Iterable[tuple[str, ModelIndex]]]) -> None:
        """`indexes` gives every index with its model's name."""
        self._indexes = indexes

    def collect(self) -> Iterator[Metric]:
        """Collector.collect."""
        indexed = list(self._indexes())
        yield from _sizes(indexed)
        yield from _checks([(model, index.check) for model, index in indexed])


def _sizes(indexed: list[tuple[str, ModelIndex]]) -> Iterator[Metric]:
    blocks = gauge("index_blocks", "Blocks that an index knows.", "model", "index")
    memory = gauge("index_memory_bytes", "Estimated memory of an index.", "model", "index")
    evicted = counter(
        "index_evicted_blocks", "KV blocks forgotten because there were too many.", "model"
    )
    refused = counter(
        "index_refused_events", "KV events that could not be used, by reason.", "model", "reason"
    )
    for model, index in indexed:
        parts = (
            ("approximate", index.approximate.blocks, index.approximate.memory_bytes),
            ("exact", index.residency.blocks, index.residency.memory_bytes),
            ("texts", len(index.texts), index.texts.memory_bytes),
        )
        for part, count, size in parts:
            blocks.add_metric((model, part), count)
            memory.add_metric((model, part), size)
        evicted.add_metric((model,), index.residency.evicted)
        for reason, count in index.residency.refused.items():
            refused.add_metric((model, reason), count)
    yield from (blocks, memory, evicted, refused)


def _checks(checked: list[tuple[str, HitCheck]]) -> Iterator[Metric]:
    labels = ("model", "replica", "source")
    predicted = counter("predicted_hit_tokens", "Prompt tokens predicted to be cached.", *labels)
    confirmed = counter(
        "confirmed_hit_tokens", "Predicted tokens that were cached, as engines say.", *labels
    )
    turned_off = counter(
        "index_turned_off", "Times a source was turned off: too few hits were real.", *labels
    )
    surprises = counter(
        "unpredicted_hits", "Requests with cached tokens and no predicted ones.", *labels[:2]
    )
    for model, check in checked:
        for family, counts in (
            (predicted, check.predicted),
            (confirmed, check.confirmed),
            (turned_off, check.turned_off),
        ):
            for (replica, source), count in counts.items():
                family.add_metric((model, replica.id, source), count)
        for replica, count in check.surprises.items():
            surprises.add_metric((model, replica.id), count)
    yield from (predicted, confirmed, turned_off, surprises)
