"""Objects of one model, as its operator and nodes leave them."""

from __future__ import annotations

from typing import Any

LABELS = {"kvasir.dev/deployment": "qwen", "kvasir.dev/component": "engine"}


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> Any:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def resource(*conditions: Any, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"namespace": "ml", "name": "qwen", "generation": 2, "uid": "u"},
        "spec": {"model": {"uri": "hf://Qwen/Qwen3-8B", "aliases": ["chat"]}, "replicas": 2},
        "status": {
            "observedGeneration": 2,
            "phase": "Starting",
            "readyReplicas": 0,
            "conditions": list(conditions),
            **status,
        },
    }


def workload(name: str = "qwen", ready: int = 0, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ml", "name": name, "labels": LABELS},
        "spec": {
            "replicas": 2,
            "template": {"metadata": {"labels": {"kvasir.dev/revision": "r1"}}},
        },
        "status": {"readyReplicas": ready, "updatedReplicas": 2, **status},
    }


def pod(name: str, status: dict[str, Any], owner: str = "qwen", **marks: str) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ml",
            "name": name,
            "uid": f"uid-{name}",
            "labels": {**LABELS, "pod-template-hash": "77f", **marks},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"{owner}-77f"}],
            "creationTimestamp": "2026-01-01T11:50:00Z",
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "engine", "image": "engine:1"}]},
        "status": {"phase": "Running", **status},
    }


def crashing(restarts: int = 4) -> dict[str, Any]:
    ended = {"exitCode": 2, "reason": "Error", "message": "boom"}
    engine = {
        "name": "engine",
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": ended},
    }
    return {"containerStatuses": [engine]}


READY = {"conditions": [condition("Ready"), condition("ContainersReady")]}
ROUTER = {"kvasir.dev/component": "router", "kvasir.dev/deployment": ""}
