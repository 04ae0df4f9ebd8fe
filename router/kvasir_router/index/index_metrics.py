"""Metrics of the indexes: how large they are, and how often they were right."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.model import Model
from kvasir_router.index.hit_check import HitCheck
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.telemetry.router_metrics import counter, gauge


class IndexCollector(Collector):
    """Of the models whose policy has an index. Made into metric families at each scrape."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """Collector.collect."""
        indexed = [
            (model, model.policy.index)
            for model in self._fleet.models.values()
            if isinstance(model.policy, KvAware)
        ]
        yield from _sizes(indexed)
        yield from _checks([(model, index.check) for model, index in indexed])


def _sizes(indexed: list[tuple[Model, ModelIndex]]) -> Iterator[Metric]:
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
            blocks.add_metric((model.name, part), count)
            memory.add_metric((model.name, part), size)
        evicted.add_metric((model.name,), index.residency.evicted)
        for reason, count in index.residency.refused.items():
            refused.add_metric((model.name, reason), count)
    yield from (blocks, memory, evicted, refused)


def _checks(checked: list[tuple[Model, HitCheck]]) -> Iterator[Metric]:
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
                family.add_metric((model.name, replica.id, source), count)
        for replica, count in check.surprises.items():
            surprises.add_metric((model.name, replica.id), count)
    yield from (predicted, confirmed, turned_off, surprises)
