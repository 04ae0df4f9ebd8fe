"""Publish block events and update metrics after each step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from kvasir_engine.core.build import Core
from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.kv.event_publisher import KVEventPublisher
from kvasir_engine.kv.events import EventRecorder

if TYPE_CHECKING:
    from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.scheduler.counters import SchedulerLoad


class AfterStep(Protocol):
    """Called once a turn of the core's loop; must not block."""

    def __call__(self, core: Core, load: SchedulerLoad | None) -> None:
        """`load` is None in turns that did not look at it."""
        ...

    def close(self) -> None:
        """Send what waits and stop."""
        ...


class BlockEvents:
    """Publish what the block pools recorded."""

    def __init__(
        self, config: CoreConfig, recorder: EventRecorder, registry: MetricRegistry
    ) -> None:
        settings = config.settings
        self._recorder = recorder
        self._dropped = registry.counter(
            "kv_events_dropped", "Batches of KV events dropped because their publisher was behind."
        )
        self._num_dropped = 0
        self._publisher = KVEventPublisher(
            settings.kv_events_endpoint,
            settings.kv_events_replay_endpoint,
            topic=config.kv_events_topic,
            fleet_secret=os.environ.get("KVASIR_FLEET_SECRET", ""),
        )

    def __call__(self, core: Core, load: SchedulerLoad | None) -> None:
        """AfterStep."""
        self._publisher.publish(self._recorder.drain_events())
        dropped = self._publisher.dropped_batches
        if dropped > self._num_dropped:
            self._dropped.inc(dropped - self._num_dropped)
            self._num_dropped = dropped

    def close(self) -> None:
        """AfterStep.close."""
        self._publisher.close()
