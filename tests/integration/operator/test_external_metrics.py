"""External metrics as the chart sets them up: the operator's flags and its rights."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.binaries import binary
from kvasir.cli.local.ports import free_ports
from kvasir_operator.external_metrics.metrics_server import API_SERVICE

CHART = Path(__file__).parents[3] / "charts" / "kvasir"
DEADLINE = 120.0


@pytest.fixture
def enabled(plane: Any) -> Iterator[list[str]]:
    """The operator's arguments about it, from a chart that is installed with it."""
    command = [binary("helm"), "template", "kvasir", CHART, "--namespace", "kvasir-test"]
    command += ["--kube-version", "1.34.0", "--set", "global.imageRegistry=x"]
    command += ["--set", "externalMetrics.enabled=true"]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    objects = [each for each in yaml.safe_load_all(rendered) if each]
    wanted = [
        each
        for each in objects
        if each["kind"] == "APIService" or each["metadata"]["name"].endswith("external-metrics")
    ]
    plane.apply(yaml.safe_dump_all(wanted))
    [deployment] = [
        each
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"].endswith("-operator")
    ]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    yield [each for each in container["args"] if each.startswith("--external-metrics-service")]
    plane.kubectl("delete", "-f", "-", input=yaml.safe_dump_all(wanted))


def test_the_operator_serves_and_registers_itself(
    plane: Any, enabled: list[str], operators: Any
) -> None:
    operator = operators("--external-metrics-port", str(free_ports(1)[0]), *enabled)
    operator.start()
    end = time.monotonic() + DEADLINE
    while not plane.kubectl.json("get", "apiservice", API_SERVICE)["spec"].get("caBundle"):
        assert operator.process.poll() is None, operator.log
        assert time.monotonic() < end, operator.log
        time.sleep(0.2)
    assert operator.stop() == 0
