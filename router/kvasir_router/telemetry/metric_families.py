"""Metric families as values: to be told to another process, summed, and read by labels."""

from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.telemetry.router_metrics import PREFIX

Sample = tuple[str, dict[str, str], float]
Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, array_like=True, gc=False):
    """A metric family."""

    name: str
    kind: str
    text: str
    samples: list[Sample]


def families_of(metrics: Iterable[Metric]) -> list[Family]:
    """Return what `metrics` say now."""
    return [
        Family(
            each.name,
            each.type,
            each.documentation,
            [(sample.name, dict(sample.labels), float(sample.value)) for sample in each.samples],
        )
        for each in metrics
    ]


def text_of(families: Iterable[Family]) -> bytes:
    """Return the families in Prometheus' text format."""
    return generate_latest(_Families(families))


def by_labels(families: Iterable[Family], sample: str) -> dict[Labels, float]:
    """Return the values of one kind of sample; labels in alphabetical order."""
    return {
        tuple(sorted(labels.items())): value
        for family in families
        for name, labels, value in family.samples
        if name == PREFIX + sample
    }


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, labels, value)
            yield metric
