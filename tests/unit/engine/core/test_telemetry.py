from __future__ import annotations

from pathlib import Path

from kvasir_engine.core.build import build_core
from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.telemetry import BlockEvents
from kvasir_engine.kv.events import EventRecorder
from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.settings import make_settings


def test_dropped_batches_of_events_are_counted(tmp_path: Path, tiny_dir: Path) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    settings = make_settings(str(tiny_dir), device="sim", num_blocks=8, kv_events_endpoint=endpoint)
    core = build_core(settings, tiny_dir)
    recorder = EventRecorder()
    registry = MetricRegistry("kvasir_", "tiny")
    events = BlockEvents(CoreConfig(settings, str(tiny_dir), num_clients=1), recorder, registry)
    [listener] = recorder.listeners(core.built_runner.groups)
    events._publisher._max_queued = 0
    for _ in range(3):
        listener.removed(b"h" * 16)
        events(core, None)
    events(core, None)
    events.close()
    counted = 'kvasir_kv_events_dropped_total{engine="0",model_name="tiny"} 3.0'
    assert counted in registry.exposition().decode()
