"""Templates of pods that a resource may not have, with what is said of each."""

from __future__ import annotations

from typing import Any

_POD: dict[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 1,
    "activeDeadlineSeconds": 1,
    "readinessGates": [],
    "hostNetwork": False,
    "nodeName": "a",
}
_ENGINE: dict[str, Any] = {
    "image": "own:1",
    "command": ["sh"],
    "args": [],
    "env": [{"name": "A", "value": "b"}],
    "ports": [],
    "lifecycle": {},
    "startupProbe": {},
    "readinessProbe": {},
    "livenessProbe": {},
}


def _of_engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


TAKEN: dict[str, tuple[dict[str, Any], str]] = {
    **{name: ({"spec": {name: value}}, f"{name}: ") for name, value in _POD.items()},
    **{
        f"engine's {name}": (_of_engine(**{name: value}), f"{name} of container engine: ")
        for name, value in _ENGINE.items()
    },
    "engine's mount": (
        _of_engine(volumeMounts=[{"name": "own", "mountPath": "/models"}]),
        "volumeMounts of container engine has a path at which Kvasir mounts something",
    ),
    "engine's limits": (
        _of_engine(resources={"limits": {"nvidia.com/gpu": 1}}),
        "resources.limits of container engine: use spec.resources for cpu",
    ),
    "engine's requests": (
        _of_engine(resources={"requests": {"memory": "1Gi"}}),
        "resources.requests of container engine: use spec.resources for cpu",
    ),
    "volume": (
        {"spec": {"volumes": [{"name": "models", "emptyDir": {}}]}},
        "volumes models and fleet are set by Kvasir; give yours another name",
    ),
    "template's label": (
        {"metadata": {"labels": {"kvasir.dev/x": "y"}}},
        "keys under kvasir.dev/ and app.kubernetes.io/ are set by Kvasir",
    ),
}
"""Template and what is said of it, by name."""

FULL: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"a.b/c": "text"}},
    "spec": {
        "serviceAccountName": "own",
        "securityContext": {"fsGroup": 1000},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "resourceClaims": [{"name": "net", "resourceClaimTemplateName": "net"}],
        "initContainers": [{"name": "first", "image": "own:1", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "engine",
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "resources": {"limits": {"rdma/ib": 1}, "claims": [{"name": "net"}]},
                "volumeMounts": [{"name": "own", "mountPath": "/own", "readOnly": True}],
                "envFrom": [{"configMapRef": {"name": "own"}}],
            },
            {
                "name": "proxy",
                "image": "proxy:1",
                "args": ["--own"],
                "ports": [{"containerPort": 9}],
            },
        ],
        "volumes": [{"name": "own", "configMap": {"name": "own"}}],
    },
}
"""A template with something of everything."""
