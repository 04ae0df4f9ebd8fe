"""A control plane that was empty, and helm with it."""

from collections.abc import Iterator

import pytest
from support.helm import charts, find, helm, helm_error, render, value_sets, values_name

from harness.control_plane import ControlPlane
from harness.errors import HarnessError
from harness.fixtures import running_plane
from harness.go_modules import (
    GATEWAY_API,
    INFERENCE_EXTENSION,
    PROMETHEUS_OPERATOR,
    module_directory,
)

__all__ = [
    "charts",
    "find",
    "helm",
    "helm_error",
    "render",
    "value_sets",
    "values_name",
]

FOREIGN = (
    (GATEWAY_API, "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    (INFERENCE_EXTENSION, "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"),
    (
        PROMETHEUS_OPERATOR,
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    ),
    (
        PROMETHEUS_OPERATOR,
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
)
"""Definitions of other projects that the chart makes objects of."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One of its own: releases own cluster-wide objects."""
    with running_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture(scope="module")
def cluster(helm, plane):
    """Helm with that cluster."""
    return helm.on(plane.kubeconfig)


@pytest.fixture(scope="module")
def defined(plane, charts) -> ControlPlane:
    """The cluster with all definitions and the namespaces that values name."""
    files = sorted((charts / "kvasir/files/crds").iterdir())
    try:
        files += [module_directory(*module) / path for module, path in FOREIGN]
    except HarnessError as error:
        pytest.fail(str(error), pytrace=False)
    plane.define("\n---\n".join(file.read_text() for file in files))
    spaces = ("kvasir", "team-a", "team-b")
    plane.apply(
        "\n---\n".join(
            f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}" for name in spaces
        )
    )
    return plane
