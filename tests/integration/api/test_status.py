"""The command against a real API server, with objects as the operator leaves them."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.resource.ownership.deployment_class import class_manifest

CRDS = Path(__file__).parents[3] / "charts" / "kvasir" / "files" / "crds"
CRD = CRDS / "llmdeployments.yaml"


def status(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvasir", "status", *arguments],
        env={"KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def deployed(control_plane) -> Any:
    """A namespace with a deployment whose one pod cannot be scheduled."""
    control_plane.define(CRD.read_text())
    namespace = control_plane.namespace()
    metadata = {"namespace": namespace, "name": "tiny"}
    kind = {"apiVersion": "kvasir.dev/v1alpha1", "kind": "LLMDeployment", "metadata": metadata}
    spec = {"spec": {"model": {"uri": "builtin://kvasir-tiny"}}}
    control_plane.apply(yaml.safe_dump(kind | spec))
    waiting = {
        "type": "WorkloadReady",
        "status": "False",
        "reason": "Waiting",
        "message": "0 of 1 engines are up",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    told = {"phase": "Starting", "observedGeneration": 1, "replicas": 1, "conditions": [waiting]}
    patch = json.dumps({"status": told})
    control_plane.kubectl(
        *("patch", "llmd", "tiny", "-n", namespace, "--subresource=status"),
        *("--type=merge", "-p", patch),
    )
    marks = {"kvasir.dev/deployment": "tiny", "kvasir.dev/component": "engine"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": "tiny-0", "labels": marks},
        "spec": {"containers": [{"name": "engine", "image": "engine"}]},
    }
    control_plane.apply(yaml.safe_dump(pod))
    return namespace


def test_a_deployment_and_why_it_is_not_ready(control_plane, deployed) -> None:
    shown = status(control_plane.kubeconfig, "tiny", "-n", deployed)
    assert shown.returncode == 1, shown.stderr
    assert f"{deployed}/tiny  Starting  0/1 ready" in shown.stdout
    assert "why not ready: Waiting: 0 of 1 engines are up" in shown.stdout
    assert "tiny-0  engine  Pending" in shown.stdout
    told = json.loads(status(control_plane.kubeconfig, "-n", deployed, "--json").stdout)
    assert [(each["name"], each["pods"][0]["name"]) for each in told] == [("tiny", "tiny-0")]
    everywhere = json.loads(status(control_plane.kubeconfig, "-A", "--json").stdout)
    assert deployed in {each["namespace"] for each in everywhere}


def lease(namespace: str, renewed: datetime, seconds: int = 2) -> str:
    """A Lease that somebody holds, of the operator `own`."""
    spec = {"holderIdentity": "pod_1", "leaseDurationSeconds": seconds}
    return yaml.safe_dump(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": namespace, "name": "own"},
            "spec": {**spec, "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
        }
    )


def test_a_class_whose_operator_is_dead_is_told(control_plane, deployed) -> None:
    """As it is gone, given back, without a renewal, and at work."""

    def told() -> str | None:
        done = status(control_plane.kubeconfig, "-n", deployed, "--json")
        return json.loads(done.stdout)[0]["operator"]

    control_plane.define((CRDS / "llmdeploymentclasses.yaml").read_text())
    class_ = class_manifest(f"{deployed}-c", f"kvasir.dev/{deployed}/own", (), is_default=False)
    control_plane.apply(yaml.safe_dump(class_))
    patch = json.dumps({"spec": {"className": f"{deployed}-c"}})
    control_plane.kubectl("patch", "llmd", "tiny", "-n", deployed, "--type=merge", "-p", patch)
    assert f"nobody holds Lease {deployed}/own" in str(told())
    control_plane.apply(lease(deployed, datetime(2026, 1, 1, tzinfo=UTC)))
    assert f"since 2026-01-01T00:00:00.000000Z nobody has renewed Lease {deployed}/own" in str(
        told()
    )
    control_plane.apply(lease(deployed, datetime.now(UTC), 600))
    assert told() is None


def test_what_cannot_be_shown_is_one_sentence(control_plane, deployed, tmp_path) -> None:
    absent = status(control_plane.kubeconfig, "other", "-n", deployed)
    assert absent.returncode == 1
    assert f"no LLMDeployment 'other' in namespace {deployed}; there is tiny" in absent.stderr
    empty = status(control_plane.kubeconfig, "-n", control_plane.namespace())
    assert "There are no LLMDeployments in namespace" in empty.stdout
    account = f"{deployed}/default"
    refused = status(control_plane.kubeconfig_for(account), "-n", deployed)
    assert "you may not list llmdeployments.kvasir.dev in namespace" in refused.stderr
    nowhere = status(tmp_path / "absent")
    assert nowhere.returncode == 2
    assert "no cluster to ask" in nowhere.stderr
    assert "set KUBECONFIG" in nowhere.stderr
