"""Metrics of the indexes: how large they are, and how often they were right."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import Metric

from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.hit_check import HitSource
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.telemetry.router_metrics import counter, gauge


def index_families(indexed: Iterable[tuple[str, ModelIndex]]) -> Iterator[Metric]:
    """Yield the numbers of all indexes, given with their models' names."""
    indexes = dict(indexed)
    yield from _sizes(indexes)
    yield from _checks(indexes)


def _sizes(indexes: Mapping[str, ModelIndex]) -> Iterator[Metric]:
    blocks, memory = {}, {}
    for model, index in indexes.items():
        blocks[model, "approximate"] = index.approximate.blocks
        blocks[model, "exact"] = index.residency.blocks
        blocks[model, "texts"] = len(index.texts)
        memory[model, "approximate"] = index.approximate.memory_bytes
        memory[model, "exact"] = index.residency.memory_bytes
        memory[model, "texts"] = index.texts.memory_bytes
    yield gauge("index_blocks", "Blocks that an index knows.", blocks, "model", "index")
    yield gauge("index_memory_bytes", "Estimated memory of an index.", memory, "model", "index")
    evicted = {model: index.residency.evicted for model, index in indexes.items()}
    text = "KV blocks forgotten because there were too many."
    yield counter("index_evicted_blocks", text, evicted, "model")
    refused = {model: index.residency.refused for model, index in indexes.items()}
    text = "KV events that could not be used, by reason."
    yield counter("index_refused_events", text, refused, "model", "reason")


def _checks(indexes: Mapping[str, ModelIndex]) -> Iterator[Metric]:
    labels = ("model", "replica", "source")
    checks = {model: index.check for model, index in indexes.items()}
    predicted = {model: _by_id(check.predicted) for model, check in checks.items()}
    text = "Prompt tokens predicted to be cached."
    yield counter("predicted_hit_tokens", text, predicted, *labels)
    confirmed = {model: _by_id(check.confirmed) for model, check in checks.items()}
    text = "Predicted tokens that were cached, as engines say."
    yield counter("confirmed_hit_tokens", text, confirmed, *labels)
    turned_off = {model: _by_id(check.turned_off) for model, check in checks.items()}
    text = "Times a source was turned off: too few hits were real."
    yield counter("index_turned_off", text, turned_off, *labels)
    surprises = {
        model: {replica.id: count for replica, count in check.surprises.items()}
        for model, check in checks.items()
    }
    text = "Requests with cached tokens and no predicted ones."
    yield counter("unpredicted_hits", text, surprises, "model", "replica")


def _by_id(
    counts: Mapping[tuple[CachedReplica, HitSource], int],
) -> dict[tuple[str, str], int]:
    return {(replica.id, source): count for (replica, source), count in counts.items()}
