from __future__ import annotations

import logging
from itertools import count
from pathlib import Path

import pytest

from kvasir_engine.core.build import build_core
from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.telemetry import BlockEvents, ThroughputLog
from kvasir_engine.kv.events import EventRecorder
from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
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


@pytest.mark.parametrize("secret", ["", "s"])
def test_events_are_for_holders_of_the_secret(tmp_path: Path, secret: str) -> None:
    settings = make_settings("m", device="sim", kv_events_endpoint=f"ipc://{tmp_path}/events")
    config = CoreConfig(settings, "m", num_clients=1, fleet_secret=secret)
    events = BlockEvents(config, EventRecorder(), MetricRegistry("kvasir_", "m"))
    assert bool(events._publisher._pub.curve_server) is bool(secret)
    events.close()


def test_throughput_is_logged_while_there_is_some(
    tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = build_core(make_settings(str(tiny_dir), device="sim", num_blocks=64), tiny_dir)
    seconds = count(0, 10.0)
    throughput = ThroughputLog(clock=lambda: next(seconds))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    for handle in range(2):  # the second finds two blocks of the first's prompt
        core.scheduler.add(EngineRequest("r", handle, list(range(40)), params))
        while not core.loop.idle:
            core.loop.step()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            throughput(core, core.scheduler.load())
    (line,) = caplog.messages
    assert line == (
        "prompts 4.8 tokens/s, generation 1.6 tokens/s, running 0, waiting 0, "
        "KV cache usage 0.0 %, prefix cache hits 40.0 %, preemptions 0"
    )
