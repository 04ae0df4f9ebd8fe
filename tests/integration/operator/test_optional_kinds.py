"""Kinds that KEDA and Prometheus' operator bring: used when they come, done without when not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.go_modules import KEDA, PROMETHEUS_OPERATOR, module_directory
from kvasir.kube.objects import condition
from kvasir_operator.kinds import AUTOSCALERS, POD_MONITORS, RULES, SCALED_OBJECTS

PROMETHEUS = "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml"
FILES = (
    (KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml"),
    (PROMETHEUS_OPERATOR, PROMETHEUS.format("podmonitors")),
    (PROMETHEUS_OPERATOR, PROMETHEUS.format("prometheusrules")),
)
NAMES = (
    "scaledobjects.keda.sh",
    "podmonitors.monitoring.coreos.com",
    "prometheusrules.monitoring.coreos.com",
)


@pytest.fixture
def foreign(plane: Any) -> Iterator[Callable[..., None]]:
    """foreign(there): others' definitions come, or go."""

    def change(there: bool) -> None:
        if not there:
            plane.undefine(*NAMES)
            return
        try:
            texts = [(module_directory(*module) / path).read_text() for module, path in FILES]
        except HarnessError as error:
            pytest.fail(str(error), pytrace=False)
        plane.define("\n---\n".join(texts))

    yield change
    change(False)


@pytest.mark.slow
async def test_what_others_define_comes_and_goes(site: Any, start: Any, foreign: Any) -> None:
    """Their own schemas take every field: an apply with one that they lack is refused."""
    operator = start()
    await site.apply(autoscaling={"controller": "keda", "maxReplicas": 4})
    await site.until("Ready", "True")

    async def keda_is_missed() -> bool:
        told = condition(await site.get(), "ScalingActive")
        return "KEDA is not installed" in str(told.get("message"))

    async def theirs() -> bool:
        kinds = (SCALED_OBJECTS, POD_MONITORS, RULES)
        found = [await site.cluster.get(kind, site.namespace, "m") for kind in kinds]
        return all(found) and not await keda_is_missed()

    await site.eventually(keda_is_missed, "a sentence about KEDA")
    assert await site.cluster.get(AUTOSCALERS, site.namespace, "m") is None
    foreign(True)
    await site.eventually(theirs, "a ScaledObject, a PodMonitor and a PrometheusRule")
    await site.until("Degraded", "False")
    (trigger,) = (await site.get(SCALED_OBJECTS))["spec"]["triggers"]
    assert trigger["metadata"]["url"].endswith(":" + str(site.router.port) + "/scaling/m")
    (endpoint,) = (await site.get(POD_MONITORS))["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    (group,) = (await site.get(RULES))["spec"]["groups"]
    assert group["rules"]

    foreign(False)
    await site.eventually(keda_is_missed, "a sentence about KEDA again")
    await site.until("Ready", "True")
    await site.until("ScalingActive", "False", "MetricsMissing")
    await site.until("Degraded", "True", "MetricsMissing")
    assert operator.stop() == 0
    assert '"level": "error"' not in operator.log
