"""Publish block events and log the throughput after each step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from kvasir_engine.core.build import Core
from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.kv.event_publisher import KVEventPublisher
from kvasir_engine.kv.events import EventRecorder
from kvasir_engine.scheduler.counters import SchedulerCounters, SchedulerLoad

if TYPE_CHECKING:
    from kvasir_engine.metric_registry import MetricRegistry

log = logging.getLogger(__name__)

THROUGHPUT_LOG_SECONDS = 10.0


class AfterStep(Protocol):
    """Called once a turn of the core's loop; must not block."""

    def __call__(self, core: Core, load: SchedulerLoad | None) -> None:
        """`load` is None in turns that did not look at it."""
        ...

    def close(self) -> None:
        """Send what waits and stop."""
        ...


class ThroughputLog:
    """Log what the engine does every 10 s while it does something."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._seen = SchedulerCounters()

    def __call__(self, core: Core, load: SchedulerLoad | None) -> None:
        """AfterStep."""
        now = self._clock()
        seconds = now - self._began
        if load is None or seconds < THROUGHPUT_LOG_SECONDS:
            return
        totals, seen = core.scheduler.counters, self._seen
        self._began, self._seen = now, replace(totals)
        if totals.steps == seen.steps:
            return
        queries = totals.prefix_queries - seen.prefix_queries
        hits = totals.prefix_hits - seen.prefix_hits
        log.info(
            "prompts %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, "
            "KV cache usage %.1f %%, prefix cache hits %s, preemptions %d",
            (totals.prefill_tokens - seen.prefill_tokens) / seconds,
            (totals.generated_tokens - seen.generated_tokens) / seconds,
            load.running,
            load.waiting,
            100 * load.kv_usage,
            f"{100 * hits / queries:.1f} %" if queries else "none asked for",
            totals.preemptions - seen.preemptions,
        )

    def close(self) -> None:
        """AfterStep.close."""


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
        self._fleet_secret = config.followed_secret()
        self._fleet_secret.follow()
        self._publisher = KVEventPublisher(
            settings.kv_events_endpoint,
            settings.kv_events_replay_endpoint,
            topic=config.kv_events_topic,
            fleet_secret=self._fleet_secret,
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
        self._fleet_secret.stop()
        self._publisher.close()
