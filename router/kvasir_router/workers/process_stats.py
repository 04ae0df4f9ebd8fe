"""A process's numbers as they are told, and all processes' together.

Counters and histograms are summed, with those of processes that have ended: a sum never falls while
the router runs. Of gauges some are summed, of the others every process sees the same, or less.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.scaling.latency_window import SlotState
from kvasir_router.scaling.signals import Signals
from kvasir_router.telemetry.router_metrics import PREFIX

_SUMMED_GAUGES = frozenset(
    PREFIX + name for name in ("client_connections", "waiting_requests", "stream_transcript_bytes")
)
_SUMMED_KINDS = frozenset({"counter", "histogram"})

Sample = tuple[str, dict[str, str], float]
Labels = tuple[tuple[str, str], ...]
WindowStates = dict[str, tuple[list[SlotState], list[SlotState], list[SlotState]]]
"""By model: of first bytes, of times between tokens, of requests."""


class Family(msgspec.Struct, array_like=True, gc=False):
    """A metric family of one process."""

    name: str
    kind: str
    text: str
    samples: list[Sample]

    @property
    def is_summed(self) -> bool:
        return self.kind in _SUMMED_KINDS or self.name in _SUMMED_GAUGES


class ProcessStats(msgspec.Struct, array_like=True):
    """All of one process."""

    families: list[Family]
    windows: WindowStates


def families(metrics: Iterable[Metric]) -> list[Family]:
    """As they are told."""
    return [
        Family(
            each.name,
            each.type,
            each.documentation,
            [(sample.name, dict(sample.labels), float(sample.value)) for sample in each.samples],
        )
        for each in metrics
    ]


def windows(signals: Signals, models: Iterable[str]) -> WindowStates:
    """Return the models' latencies of the last minute."""
    states = {}
    for name in models:
        model = signals.model(name)
        states[name] = model.ttft.state(), model.itl.state(), model.requests.state()
    return states


class Totals:
    """Everybody's numbers, by process."""

    def __init__(self) -> None:
        self.past: list[Family] = []
        """Sums of processes that have ended; only what is summed and does not go down."""
        self._past_windows: list[WindowStates] = []
        self._live: dict[int, ProcessStats] = {}

    @property
    def processes(self) -> list[int]:
        """Those that are not known to have ended, by their ids."""
        return list(self._live)

    def told(self, pid: int, numbers: ProcessStats) -> None:
        """A process said how things are."""
        self._live[pid] = numbers

    def ended(self, pid: int, models: Collection[str], replicas: Collection[Labels]) -> None:
        """A process is gone; what it counted stays, for models and replicas that exist."""
        numbers = self._live.pop(pid, None)
        if numbers is None:
            return
        counted = [each for each in numbers.families if each.kind in _SUMMED_KINDS]
        merged = _merged([*self.past, *counted])
        for family in merged:
            family.samples = [s for s in family.samples if _exists(s[1], models, replicas)]
        self.past = [family for family in merged if family.samples]
        # As many as may have ended within a window
        self._past_windows = [*self._past_windows[-16:], numbers.windows]

    def families(self, own: Iterable[Metric]) -> list[Family]:
        """Return the metrics of all processes. What is summed is that of the others, and `own`
        only where they have none: the process that asks shows sums where its own numbers would
        be. What is not summed is its own."""
        others = [*self.past, *(family for each in self._live.values() for family in each.families)]
        known = {family.name for family in others if family.samples}
        mine = [
            family
            for family in families(own)
            if family.samples and not (family.is_summed and family.name in known)
        ]
        said = {family.name for family in mine}
        return _merged([*mine, *(family for family in others if family.name not in said)])

    def fill(self, signals: Signals, models: Iterable[str]) -> None:
        """Make the signals' windows those of all processes together."""
        told = [*self._past_windows, *(each.windows for each in self._live.values())]
        for name in models:
            model = signals.model(name)
            model.clear()
            for each in told:
                if name in each:
                    ttft, itl, requests = each[name]
                    model.ttft.add(ttft)
                    model.itl.add(itl)
                    model.requests.add(requests)


def text_of(merged: Iterable[Family]) -> bytes:
    """In Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Merged(merged))
    return generate_latest(registry)


def by_labels(merged: Iterable[Family], sample: str) -> dict[Labels, float]:
    """The values of one kind of sample; labels in alphabetical order."""
    return {
        tuple(sorted(labels.items())): value
        for family in merged
        for name, labels, value in family.samples
        if name == PREFIX + sample
    }


class _Merged(Collector):
    def __init__(self, merged: Iterable[Family]) -> None:
        self._merged = merged

    def collect(self) -> Iterator[Metric]:
        for family in self._merged:
            metric = Metric(family.name, family.text, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, labels, value)
            yield metric


def _merged(several: Iterable[Family]) -> list[Family]:
    found: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, Labels], float]] = {}
    for family in several:
        if family.name not in found:
            found[family.name] = Family(family.name, family.kind, family.text, [])
            values[family.name] = {}
        total = values[family.name]
        for name, labels, value in family.samples:
            key = name, tuple(labels.items())
            before = total.get(key)
            if before is None:
                total[key] = value
            else:
                total[key] = before + value if family.is_summed else max(before, value)
    for name, family in found.items():
        family.samples = [(key[0], dict(key[1]), value) for key, value in values[name].items()]
    return list(found.values())


def _exists(
    labels: Mapping[str, str], models: Collection[str], replicas: Collection[Labels]
) -> bool:
    model = labels.get("model")
    if not model:
        return True
    if "replica" in labels:
        return (("model", model), ("replica", labels["replica"])) in replicas
    return model in models
