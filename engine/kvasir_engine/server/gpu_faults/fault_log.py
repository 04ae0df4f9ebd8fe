"""Log and metrics of the faults of GPUs."""

from __future__ import annotations

from typing import Any

from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.server.gpu_faults.fault_judge import GpuFault
from kvasir_engine.server.gpu_faults.gpu_probe import SLOWDOWNS, Sight

_MAX_REASON = 200


class FaultLog:
    """FaultTeller. A look that fails as the last one is counted, not told again."""

    def __init__(self, registry: MetricRegistry, log: Any) -> None:
        self._log = log
        self._labels = registry.labels
        self._faults = registry.counter(
            "gpu_faults", "Faults of the engine's GPUs.", ("kind", "action")
        )
        self._failures = registry.counter(
            "gpu_probe_failures", "Looks at the GPUs that failed.", ("reason",)
        )
        self._watched = registry.gauge("gpus_watched", "GPUs whose faults are seen.")
        self._slowed = registry.labelled_gauge(
            "gpus_slowed", "GPUs whose clocks are lowered, by what.", ("reason",)
        )
        self._watched.set(0)
        for reason in SLOWDOWNS:
            self._slowed.labels(**self._labels, reason=reason).set(0)
        self._trouble = ""

    def watching(self, gpus: tuple[str, ...]) -> None:
        """FaultTeller."""
        self._trouble = ""
        self._watched.set(len(gpus))
        self._log.info("GPUs are watched for faults", gpus=list(gpus))

    def unwatched(self, reason: str) -> None:
        """FaultTeller."""
        self._watched.set(0)
        self._log.warning("GPUs are not watched for faults", reason=reason[:_MAX_REASON])

    def trouble(self, kind: str, reason: str) -> None:
        """FaultTeller."""
        self._watched.set(0)
        self._failures.labels(**self._labels, reason=kind).inc()
        if reason != self._trouble:
            self._trouble = reason
            self._log.warning("GPUs cannot be looked at", reason=reason[:_MAX_REASON])

    def seen(self, sight: Sight) -> None:
        """FaultTeller."""
        for reason in SLOWDOWNS if sight.states else ():
            slowed = sum(reason in state.slowdowns for state in sight.states)
            self._slowed.labels(**self._labels, reason=reason).set(slowed)

    def fault(self, fault: GpuFault) -> None:
        """FaultTeller."""
        action = "drain" if fault.drains else "none"
        self._faults.labels(**self._labels, kind=fault.kind, action=action).inc()
        if fault.drains:
            self._log.error("a GPU has failed", gpu=fault.gpu, reason=fault.clause)
        elif not fault.is_repeated:
            self._log.warning("fault of a GPU, left as it is", gpu=fault.gpu, reason=fault.clause)
