"""Specs of engine types that the definition takes, and those it refuses with what it says."""

from __future__ import annotations

from typing import Any

_HUB = "hf://org/model"
_CUSTOM = {"type": "custom", "image": "own:1"}
_VLLM = {"type": "vllm", "image": "vllm/vllm-openai:v0.24.0"}
_SGLANG = {"type": "sglang", "image": "lmsysorg/sglang:v0.5.23"}


def _spec(engine: dict[str, Any], uri: str = _HUB, **more: Any) -> dict[str, Any]:
    return {"model": {"uri": uri, **more.pop("model", {})}, "engine": engine, **more}


def _env(**source: Any) -> dict[str, Any]:
    return _spec({"env": [{"name": "A", "valueFrom": source}]})


ENGINES: dict[str, dict[str, Any]] = {
    "vllm": _spec(
        {**_VLLM, "args": ["--enforce-eager"], "config": {"maxModelLen": 8192, "device": "cuda"}},
        resources={"limits": {"nvidia.com/gpu": 1}},
        router={"tokenizer": "org/model@main"},
    ),
    "sglang": _spec({**_SGLANG, "kvCacheDtype": "fp8", "config": {"blockSize": 64}}),
    "custom engine": _spec(
        {
            **_CUSTOM,
            "command": ["serve", "$(KVASIR_MODEL)"],
            "args": ["--port", "$(KVASIR_PORT)"],
            "ports": {"http": 9000, "events": 9001, "replay": 9002},
            "probes": {
                "startup": {"path": "/started", "periodSeconds": 10},
                "readiness": {"path": "/health", "failureThreshold": 3},
                "liveness": {"timeoutSeconds": 20},
            },
            "metrics": {"running": "own:running", "kvUsage": "own:kv"},
            "drainsOnSigterm": True,
        },
        autoscaling={"maxReplicas": 2, "targets": {"kvUsage": 0.8}},
        router={"tokenizer": "org/model"},
    ),
    "probes of ours": _spec({"probes": {"liveness": {"failureThreshold": 6}}}),
    "env of a config map": _env(configMapKeyRef={"name": "c", "key": "k", "optional": True}),
    "env of the pod": _env(fieldRef={"fieldPath": "metadata.labels['a.b/c']"}),
    "env of the resources": _env(resourceFieldRef={"resource": "limits.memory", "divisor": "1Mi"}),
    "env from": _spec(
        {
            "envFrom": [
                {"prefix": "A_", "secretRef": {"name": "s"}},
                {"configMapRef": {"name": "c", "optional": True}},
            ]
        }
    ),
}

REFUSED_ENGINES: dict[str, tuple[dict[str, Any], str]] = {
    "engine type": (_spec({"type": "tgi"}), 'Unsupported value: "tgi"'),
    "custom without an image": (
        _spec({"type": "custom"}),
        "engine.type custom needs engine.image on a cluster",
    ),
    "vllm's flag": (
        _spec({**_VLLM, "args": ["--seed", "1", "--shutdown-timeout=5"]}),
        "--seed cannot be an extra argument: use spec.engine.config.seed",
    ),
    "sglang's flag": (
        _spec({**_SGLANG, "args": ["--context-length=1"]}),
        "--context-length cannot be an extra argument: use spec.engine.config.maxModelLen",
    ),
    "sglang's config": (
        _spec({**_SGLANG, "config": {"kvCacheMemoryBytes": "1Gi"}}),
        "engine.config.kvCacheMemoryBytes has no meaning with engine.type sglang; remove it",
    ),
    "custom config": (
        _spec({**_CUSTOM, "config": {"dtype": "float16"}}),
        "engine.config has no meaning with engine.type custom; use engine.args",
    ),
    "custom kv type": (
        _spec({**_CUSTOM, "kvCacheDtype": "fp8"}),
        "engine.kvCacheDtype has no meaning with engine.type custom; use engine.args",
    ),
    "custom quantisation": (
        _spec(_CUSTOM, model={"quantization": "awq"}),
        "model.quantization has no meaning with engine.type custom; use engine.args",
    ),
    "custom code": (
        _spec(_CUSTOM, model={"trustRemoteCode": True}),
        "model.trustRemoteCode has no meaning with engine.type custom; use engine.args",
    ),
    "custom auto": (
        _spec(_CUSTOM, parallelism={"tensor": "auto"}),
        "parallelism.tensor auto has no meaning with engine.type custom",
    ),
    "custom kv target": (
        _spec(_CUSTOM, autoscaling={"maxReplicas": 2, "targets": {"kvUsage": 0.5}}),
        "autoscaling.targets.kvUsage needs engine.metrics.kvUsage with engine.type custom",
    ),
    "simulated vllm": (
        _spec({**_VLLM, "config": {"device": "sim"}}),
        "engine.config.device sim is Kvasir's own engine",
    ),
    "builtin vllm": (
        _spec(_VLLM, "builtin://kvasir-tiny"),
        "builtin:// models are in Kvasir's own engine",
    ),
    "command of ours": (
        _spec({"command": ["sh"]}),
        "engine.command is for engine.type custom: the other types have their own; use args",
    ),
    "ports of vllm": (_spec({**_VLLM, "ports": {}}), "engine.ports is for engine.type custom"),
    "metrics of vllm": (
        _spec({**_VLLM, "metrics": {"running": "a"}}),
        "engine.metrics is for engine.type custom",
    ),
    "drain of vllm": (
        _spec({**_VLLM, "drainsOnSigterm": True}),
        "engine.drainsOnSigterm is for engine.type custom",
    ),
    **{
        f"{name} path of ours": (
            _spec({"probes": {name: {"path": "/x"}}}),
            f"engine.probes.{name}.path is for engine.type custom; remove it",
        )
        for name in ("startup", "readiness", "liveness")
    },
    "probe's path": (
        _spec({**_CUSTOM, "probes": {"readiness": {"path": "/a b"}}}),
        "should match",
    ),
    "replay alone": (
        _spec({**_CUSTOM, "ports": {"replay": 1}}),
        "replay is of no use without events; give that port too",
    ),
    "one port for two": (
        _spec({**_CUSTOM, "ports": {"http": 9000, "events": 9001, "replay": 9000}}),
        "http, events and replay are different ports; change one",
    ),
    "metric's name": (_spec({**_CUSTOM, "metrics": {"running": "a{b}"}}), "should match"),
    "tokenizer of ours": (
        _spec({}, router={"tokenizer": "org/model"}),
        "router.tokenizer is for engines that publish KV events and report no prompts",
    ),
    "tokenizer of none": (
        _spec(_CUSTOM, router={"tokenizer": "org/model"}),
        "router.tokenizer is for engines that publish KV events and report no prompts",
    ),
    "tokenizer's path": (_spec(_VLLM, router={"tokenizer": "/etc/x"}), "should match"),
    "no source": (_env(), "valueFrom names one source: give exactly one of secretKeyRef"),
    "two sources": (
        _env(fieldRef={"fieldPath": "metadata.name"}, resourceFieldRef={"resource": "limits.cpu"}),
        "valueFrom names one source: give exactly one of secretKeyRef",
    ),
    "pod's field": (_env(fieldRef={"fieldPath": "spec.containers"}), "should match"),
    "env from nothing": (
        _spec({"envFrom": [{"prefix": "A_"}]}),
        "envFrom names one object: give either secretRef or configMapRef",
    ),
}
