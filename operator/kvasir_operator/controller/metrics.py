"""The operator's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvasir.resource import labels
from kvasir.resource.rollout.rollout_status import RolloutPhase
from kvasir_operator.controller.work_queue import Key


class Metrics:
    """Metrics of one process; each instance has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = Counter(
            "kvasir_operator_reconciles",
            "LLMDeployments looked at, by how that ended.",
            ["result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "kvasir_operator_reconcile_seconds",
            "Time that one look takes.",
            registry=self.registry,
        )
        self._writes = Counter(
            "kvasir_operator_api_writes",
            "Writes to the API server, but for the Lease's.",
            ["resource", "verb"],
            registry=self.registry,
        )
        self._waiting = Gauge(
            "kvasir_operator_queue_length",
            "LLMDeployments that wait to be looked at.",
            registry=self.registry,
        )
        self._leads = Gauge(
            "kvasir_operator_leader",
            "1 while this process holds the Lease.",
            registry=self.registry,
        )
        self._silent_routers = Gauge(
            "kvasir_operator_silent_routers",
            "Ready routers that did not answer for 15 s when they were asked last: readiness gates"
            " do not wait for them.",
            registry=self.registry,
        )
        self._ready = Gauge(
            "kvasir_llmdeployment_ready",
            "1 while the condition Ready is True.",
            ["namespace", "name"],
            registry=self.registry,
        )

        self._wanted = Gauge(
            "kvasir_llmdeployment_wanted_replicas",
            "Replicas that the spec asks for.",
            ["namespace", "name"],
            registry=self.registry,
        )

        self._canary_weight = Gauge(
            "kvasir_llmdeployment_canary_weight",
            "Share of the requests that a canary is given, in percent; only while there is one.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self._canary_phase = Gauge(
            "kvasir_llmdeployment_canary_phase",
            "1 for the phase that the last canary is in.",
            ["namespace", "name", "phase"],
            registry=self.registry,
        )
        self._rollbacks = Counter(
            "kvasir_operator_canary_rollbacks",
            "Canaries that were rolled back, by reason.",
            ["reason"],
            registry=self.registry,
        )

        self._leaving = Gauge(
            "kvasir_operator_leaving_pods",
            "Engine pods that will end, by reason: their node is drained or ends, or they ask to.",
            ["reason"],
            registry=self.registry,
        )

        self._gpu_faults = Counter(
            "kvasir_operator_gpu_faults",
            "Engines that ended for a fault of their GPU.",
            ["namespace", "name"],
            registry=self.registry,
        )

    def reconciled(self, result: str, seconds: float, waiting: int) -> None:
        """Count one reconcile that ended: ok, retry or error."""
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)
        self._waiting.set(waiting)

    def count_write(self, resource: str, verb: str) -> None:
        """Count one write."""
        self._writes.labels(resource, verb).inc()

    def leads(self, does: bool) -> None:
        """Note whether the Lease is held."""
        self._leads.set(does)

    def silent_routers(self, count: int) -> None:
        """Note how many Ready routers do not answer."""
        self._silent_routers.set(count)

    def leaving_pods(self, by_reason: Mapping[str, int]) -> None:
        """Note how many engine pods will end."""
        for reason in (labels.NODE_LEAVES, labels.NODE_ENDS, labels.POD_ASKS):
            self._leaving.labels(reason).set(by_reason.get(reason, 0))

    def gpu_fault(self, key: Key) -> None:
        """Count an engine of an LLMDeployment that ended for a fault of its GPU."""
        self._gpu_faults.labels(*key).inc()

    def ready(self, key: Key, is_ready: bool, wanted: int) -> None:
        """Note whether an LLMDeployment is Ready, and the replicas that it asks for."""
        self._ready.labels(key.namespace, key.name).set(is_ready)
        self._wanted.labels(key.namespace, key.name).set(wanted)

    def canary(self, key: Key, phase: str, weight: int | None) -> None:
        """Note the phase of an LLMDeployment's canary, "" without one, and its share."""
        for each in RolloutPhase:
            if phase:
                self._canary_phase.labels(*key, each.value).set(each == phase)
            else:
                with suppress(KeyError):
                    self._canary_phase.remove(*key, each.value)
        if phase and weight is not None:
            self._canary_weight.labels(*key).set(weight)
        else:
            with suppress(KeyError):
                self._canary_weight.remove(*key)

    def rolled_back(self, reason: str) -> None:
        """Count a canary that was rolled back."""
        self._rollbacks.labels(reason).inc()

    def gone(self, key: Key) -> None:
        """An LLMDeployment is no more."""
        for metric in (self._ready, self._wanted, self._gpu_faults):
            with suppress(KeyError):
                metric.remove(key.namespace, key.name)
        self.canary(key, "", None)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
