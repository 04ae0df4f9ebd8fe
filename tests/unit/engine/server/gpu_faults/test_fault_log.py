from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import CapturingLogger

from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.server.gpu_faults.fault_judge import GpuFault
from kvasir_engine.server.gpu_faults.fault_log import FaultLog
from kvasir_engine.server.gpu_faults.gpu_probe import GpuState, Sight


class Rig:
    def __init__(self) -> None:
        self.registry = MetricRegistry("kvasir_", "m")
        self.log = CapturingLogger()
        self.told = FaultLog(self.registry, self.log)

    def value(self, name: str, labels: str = "") -> float:
        """Return a metric's value; labels beside those that all have."""
        for line in self.registry.exposition().decode().splitlines():
            if line.startswith(f"kvasir_{name}{{") and labels in line:
                return float(line.rpartition(" ")[2])
        raise KeyError(name)

    @property
    def lines(self) -> list[Any]:
        return [(call.method_name, call.args[0]) for call in self.log.calls]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_faults_are_counted_by_kind_and_told_when_they_are_new(rig: Rig) -> None:
    for is_repeated in (False, True):
        rig.told.fault(GpuFault("xid_13", "g", "Xid 13", drains=False, is_repeated=is_repeated))
    rig.told.fault(GpuFault("xid_79", "g", "Xid 79", drains=True))
    assert rig.value("gpu_faults_total", 'action="none"') == 2
    assert rig.value("gpu_faults_total", 'kind="xid_79"') == 1
    assert rig.lines == [
        ("warning", "fault of a GPU, left as it is"),
        ("error", "a GPU has failed"),
    ]


def test_trouble_is_told_once_until_it_is_over(rig: Rig) -> None:
    rig.told.watching(("g", "h"))
    assert rig.value("gpus_watched") == 2
    for _ in range(3):
        rig.told.trouble("error", "no")
    assert rig.value("gpus_watched") == 0
    assert rig.value("gpu_probe_failures_total", 'reason="error"') == 3
    assert [name for name, _ in rig.lines] == ["info", "warning"]
    rig.told.watching(("g", "h"))
    rig.told.trouble("error", "no")
    assert [name for name, _ in rig.lines] == ["info", "warning", "info", "warning"]


def test_nothing_to_watch_is_a_warning(rig: Rig) -> None:
    rig.told.unwatched("nvidia-ml-py is not installed")
    assert rig.value("gpus_watched") == 0
    assert rig.lines == [("warning", "GPUs are not watched for faults")]


def test_slow_clocks_are_a_gauge_that_goes_back(rig: Rig) -> None:
    slow = GpuState("g", slowdowns=frozenset({"power_brake"}))
    rig.told.seen(Sight((), (slow, GpuState("h"))))
    rig.told.seen(Sight())
    assert rig.value("gpus_slowed", 'reason="power_brake"') == 1, "a look that tells no states"
    assert rig.value("gpus_slowed", 'reason="hardware_thermal"') == 0
    rig.told.seen(Sight((), (GpuState("g"), GpuState("h"))))
    assert rig.value("gpus_slowed", 'reason="power_brake"') == 0
