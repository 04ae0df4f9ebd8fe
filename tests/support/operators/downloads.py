"""The download of a model as an API server shows it: its claim, its Job and the Job's pod."""

from __future__ import annotations

from typing import Any

HUB = {"model": {"uri": "hf://org/model", "secretRef": {"name": "hub"}}}
SECRETS = {"hub": "u/1"}


def claim(modes: list[str] | None = None, uid: str = "c1") -> dict[str, Any]:
    return {
        "metadata": {"name": "m-models", "namespace": "ns", "uid": uid},
        "spec": {"accessModes": modes or ["ReadWriteOnce"]},
    }


def own_claim(namespace: str, name: str) -> dict[str, Any]:
    """A user's claim, as it is created."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def ended(job: dict[str, Any], kind: str, since: str) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": since}]
    return {**job, "status": {"conditions": conditions}}


def job_pod(name: str, message: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 1, "message": message}}
    return {
        "metadata": {"name": f"{name}-x", "namespace": "ns", "labels": {"job-name": name}},
        "spec": {},
        "status": {"containerStatuses": [{"name": "download", "state": state}]},
    }


def removed(made: Any) -> list[str]:
    """Names of the Jobs that shall go."""
    return [each["metadata"]["name"] for each in made.deletions if each["kind"] == "Job"]
