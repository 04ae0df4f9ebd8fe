"""Every manifest whole, as it was read and accepted once: manifests/.

After an intended change: KVASIR_ACCEPT_SNAPSHOTS=1 pytest THIS_FILE, and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.templates import FULL

ACCEPTED = Path(__file__).parent / "manifests"
HUB = {"uri": "hf://org/model", "secretRef": {"name": "hub"}}
CLAIM = {
    "metadata": {"name": "m-models", "namespace": "ns", "uid": "c"},
    "spec": {"accessModes": ["ReadWriteMany"]},
    "status": {"phase": "Bound", "capacity": {"storage": "100Gi"}},
}
SPECS: dict[str, dict[str, Any]] = {
    "builtin": {"model": {"uri": "builtin://kvasir-tiny"}},
    "gpus": {
        "model": {**HUB, "revision": "abc", "trustRemoteCode": True},
        "engine": {"config": {"maxModelLen": 8192, "dtype": "bfloat16"}},
        "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "64Gi"}},
        "parallelism": {"tensor": 2},
        "cache": {"pvc": {"size": "200Gi", "accessModes": ["ReadWriteMany"]}},
        "autoscaling": {"controller": "hpa", "minReplicas": 1, "maxReplicas": 4},
    },
    "template": {
        "model": {"uri": "builtin://kvasir-tiny"},
        "resources": {"limits": {"memory": "2Gi", "ephemeral-storage": "20Gi"}},
        "podTemplate": {"labels": {"team": "b", "tier": "c"}},
        "rolloutStrategy": {"maxSurge": "25%"},
        "disruption": {"maxUnavailable": "50%"},
        "template": FULL,
    },
    "vllm": {
        "model": {**HUB, "aliases": ["n"]},
        "engine": {
            "type": "vllm",
            "image": "vllm/vllm-openai:v0.24.0",
            "args": ["--enforce-eager"],
            "config": {"maxModelLen": 8192},
            "envFrom": [{"configMapRef": {"name": "own"}}],
        },
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}},
        "router": {"tokenizer": "org/model"},
        "adapters": [{"name": "sql", "uri": "hf://org/sql"}],
    },
    "custom": {
        "model": {"uri": "pvc://claim/models/x"},
        "engine": {
            "type": "custom",
            "image": "own:1",
            "command": ["serve", "$(KVASIR_MODEL)"],
            "args": ["--port", "$(KVASIR_PORT)"],
            "ports": {"http": 9000},
            "probes": {
                "readiness": {"path": "/up"},
                "startup": {"periodSeconds": 10},
                "liveness": {"timeoutSeconds": 20},
            },
            "metrics": {"path": "/m", "running": "own:running", "waiting": "own:waiting"},
        },
        "networkPolicy": {"allowedNamespaces": ["monitoring"]},
    },
    "mounted": {
        "model": {"uri": "pvc://claim/models/x"},
        "engine": {"config": {"device": "sim"}},
        "networkPolicy": {"allowedNamespaces": ["monitoring"], "egressNamespaces": ["tracing"]},
        "lifecycle": {"drainSeconds": 30, "preStopSeconds": 0, "startupSeconds": 90},
    },
}


@pytest.mark.parametrize("name", SPECS)
def test_the_manifests_are_those_that_were_accepted(world: Any, name: str) -> None:
    optional = frozenset({"podmonitors", "prometheusrules"})
    one = world(SPECS[name]).see(optional=optional, secrets={"hub": "u/1"}, claim=CLAIM)
    manifests = list(one.plan().manifests)
    jobs = tuple(each for each in manifests if each["kind"] == "Job")
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    one.see(jobs=tuple({**job, "status": done} for job in jobs))
    manifests += [each for each in one.plan().manifests if each["kind"] == "Deployment" and jobs]
    assert any(each["kind"] == "Deployment" for each in manifests)
    manifests.sort(key=lambda it: (it["kind"], it["metadata"]["name"]))
    text = yaml.dump_all(manifests, Dumper=_NoAliases, width=100)
    path = ACCEPTED / f"{name}.yaml"
    if os.environ.get("KVASIR_ACCEPT_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


class _NoAliases(yaml.SafeDumper):
    """Writes what stands in two places twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True
