"""A process's numbers as they are told, and all processes' together.

Counters and histograms are summed, with those of processes that have ended: a sum never falls while
the router runs. Of gauges some are summed, of the others every process sees the same, or less.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any

import msgspec

from kvasir.wire.canary_samples import CanarySamples, read_samples, total
from kvasir_router.scaling.signals import Latencies, LatencyState
from kvasir_router.telemetry.metric_families import Family, Labels
from kvasir_router.telemetry.router_metrics import PREFIX

_SUMMED_GAUGES = frozenset(
    PREFIX + name
    for name in (
        *("client_connections", "waiting_requests"),
        *("stream_transcript_bytes", "canary_samples"),
    )
)
_SUMMED_KINDS = frozenset({"counter", "histogram"})

LatencyStates = dict[str, LatencyState]
"""By model."""


class ProcessStats(msgspec.Struct, array_like=True):
    """All of one process."""

    families: list[Family]
    latencies: LatencyStates
    canaries: dict[str, dict[str, Any]] = {}
    """Samples of canaries, by model."""


class Totals:
    """Everybody's numbers, by process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.past: list[Family] = []
        """Sums of processes that have ended; only what is summed and does not go down."""
        self._past_latencies: list[LatencyStates] = []
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
        self._past_latencies = [*self._past_latencies[-16:], numbers.latencies]

    def families(self, own: Iterable[Family]) -> list[Family]:
        """Return the metrics of all processes. What is summed is that of the others, and `own`
        only where they have none: the process that asks serves no requests. What is not summed is
        its own."""
        others = [*self.past, *(family for each in self._live.values() for family in each.families)]
        known = {family.name for family in others if family.samples}
        mine = [
            family
            for family in own
            if family.samples and not (_is_summed(family) and family.name in known)
        ]
        said = {family.name for family in mine}
        return _merged([*mine, *(family for family in others if family.name not in said)])

    def latencies(self, model: str) -> Latencies:
        """Return a model's latencies in all processes."""
        made = Latencies(self._clock)
        for each in [*self._past_latencies, *(each.latencies for each in self._live.values())]:
            if model in each:
                made.add(each[model])
        return made

    def canary(self, model: str, split: str) -> CanarySamples:
        """Return what all processes that live have counted of a model's split."""
        told = (each.canaries.get(model) for each in self._live.values())
        return total(split, (read_samples(each) for each in told if each is not None))


def _is_summed(family: Family) -> bool:
    return family.kind in _SUMMED_KINDS or family.name in _SUMMED_GAUGES


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
                total[key] = before + value if _is_summed(family) else max(before, value)
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
