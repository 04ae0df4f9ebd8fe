from __future__ import annotations

import subprocess
import sys

import pytest

from kvasir_engine.metric_registry import MetricRegistry, build_1_2_5_buckets

CHILD = """
import sys
from kvasir_engine.metric_registry import MetricRegistry
registry = MetricRegistry("kvasir_", "tiny")
counter = registry.counter("requests", "Requests.")
gauge = registry.gauge("num_requests_running", "Running.")
histogram = registry.histogram("seconds", "Seconds.", (1.0, 10.0))
counter.inc(int(sys.argv[1]))
histogram.observe(int(sys.argv[1]))
if sys.argv[2] == "core":
    gauge.set(3)
sys.stdout.write(registry.exposition().decode())
"""


def test_any_process_shows_the_sum_of_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for amount, role in (("2", "core"), ("5", "api"), ("6", "api")):
        result = subprocess.run(
            [sys.executable, "-c", CHILD, amount, role], capture_output=True, text=True, check=True
        )
    labels = '{engine="0",model_name="tiny"}'
    assert f"kvasir_requests_total{labels} 13.0" in result.stdout
    assert f"kvasir_seconds_count{labels} 3.0" in result.stdout
    assert 'le="10.0",model_name="tiny"} 3.0' in result.stdout


def test_one_process_shows_its_own():
    registry = MetricRegistry("x_", "m")
    reasons = registry.counter("ends", "Ends.", ["reason"])
    reasons.labels(**registry.labels, reason="stop").inc()
    text = registry.exposition().decode()
    assert 'x_ends_total{engine="0",model_name="m",reason="stop"} 1.0' in text


@pytest.mark.parametrize(
    ("largest", "expected"), [(0, (1.0,)), (1, (1.0,)), (30, (1.0, 2.0, 5.0, 10.0, 20.0))]
)
def test_buckets_go_1_2_5(largest, expected):
    assert build_1_2_5_buckets(largest) == expected
