"""Specs that the definition of LLMDeployments takes, and those it refuses with what it says."""

from __future__ import annotations

from typing import Any

from support.engine_cases import ENGINES, REFUSED_ENGINES
from support.gpu_cases import GPUS, REFUSED_GPUS
from support.lora_cases import LORA, REFUSED_LORA
from support.templates import FULL, TAKEN

HUB = "hf://org/model"
TINY = "builtin://kvasir-tiny"
GPU = "nvidia.com/gpu"


WORK = {"start": "30 7 * * MON-FRI", "end": "0 19 * * 1-5", "minReplicas": 2}


def scheduled(**more: Any) -> dict[str, Any]:
    """A spec with one schedule; None takes a field of it out."""
    schedule = {name: value for name, value in {**WORK, **more}.items() if value is not None}
    return spec(autoscaling={"maxReplicas": 4, "schedules": [schedule]})


def spec(uri: str = HUB, **more: Any) -> dict[str, Any]:
    return {"model": {"uri": uri, **more.pop("model", {})}, **more}


ACCEPTED = {
    "hub": spec("hf://org/model@main"),
    "plain hub id": spec("org/model"),
    "revision": spec(model={"revision": "main"}),
    "the same revision twice": spec("hf://org/model@main", model={"revision": "main"}),
    "secret": spec("s3://bucket/x", model={"secretRef": {"name": "s"}}),
    "names": spec(model={"name": "a", "aliases": ["b", "c"]}),
    "quantisation": spec(model={"quantization": "compressed-tensors"}),
    "flag": spec(engine={"args": ["--no-overlap", "--tokenizer", "x"]}),
    "env": spec(
        engine={
            "env": [
                {"name": "A", "value": "x"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ]
        }
    ),
    **ENGINES,
    "kv type": spec(engine={"kvCacheDtype": "fp8_e4m3"}),
    "memory": spec(engine={"config": {"kvCacheMemoryBytes": "24Gi"}}),
    "bytes": spec(engine={"config": {"kvCacheMemoryBytes": 1024}}),
    "quantities": spec(resources={"limits": {"cpu": 4, "memory": "16Gi"}}),
    "gpus": spec(resources={"limits": {GPU: "2"}}, parallelism={"tensor": 2}),
    **GPUS,
    **LORA,
    "cuda": spec(resources={"limits": {GPU: 1}}, engine={"config": {"device": "cuda"}}),
    "auto": spec(parallelism={"tensor": "auto"}, engine={"config": {"device": "cuda"}}),
    "sim": spec(TINY, engine={"config": {"device": "sim"}}),
    "sim on gpus": spec(
        TINY,
        engine={"config": {"device": "sim"}},
        resources={"limits": {GPU: 2}},
        parallelism={"tensor": 2},
    ),
    "existing claim": spec(cache={"pvc": {"claimName": "c"}}),
    "new claim": spec(cache={"pvc": {"size": "5Gi", "accessModes": ["ReadWriteMany"]}}),
    "download": spec(
        cache={
            "download": {
                "image": "dl:1",
                "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                "nodeSelector": {"pool": "cpu"},
                "tolerations": [],
                "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}},
                "deadlineSeconds": 3600,
            }
        }
    ),
    "download's account": spec(cache={"download": {"serviceAccount": {"name": "reader"}}}),
    "image's directory": spec("file:///models/x", engine={"image": "registry:5000/own:1"}),
    "volume": spec("pvc://claim/dir"),
    "no surge": spec(rolloutStrategy={"maxSurge": 0, "maxUnavailable": 1}),
    "share of surge": spec(rolloutStrategy={"maxSurge": "25%", "maxUnavailable": "0%"}),
    "canary": spec(
        rollout={
            "canary": {
                "steps": [
                    {"matches": [{"header": {"name": "X-Canary", "value": "yes"}}], "pause": {}},
                    {"weight": 10, "matches": [{"keyId": "team-a"}], "pause": {"seconds": 600}},
                    {"weight": 99},
                ],
                "analysis": {
                    "minSamples": 100,
                    "maxSeconds": 600,
                    "errorIncrease": 0.02,
                    "ttft": {"percentile": 95, "increase": 1.0},
                    "itl": {"increase": 0.1},
                },
            },
            "paused": True,
        }
    ),
    "rollout without a canary": spec(rollout={"paused": False}),
    "share of evictions": spec(disruption={"maxUnavailable": "50%"}),
    "disk": spec(resources={"limits": {"ephemeral-storage": "20Gi"}}),
    "template": spec(template=FULL),
    "scaling": spec(autoscaling={"minReplicas": 2, "maxReplicas": 2, "metric": "queue"}),
    "scaling to nothing": spec(
        autoscaling={
            "minReplicas": 0,
            "maxReplicas": 3,
            "targets": {"concurrency": 8, "kvUsage": 0.8, "ttftSeconds": 2, "itlSeconds": 0.05},
            "idleSeconds": 60,
            "behavior": {"scaleUp": {"stabilizationSeconds": 5}, "scaleDown": {"pods": 1}},
        }
    ),
    "scaling by others": spec(autoscaling={"controller": "keda", "maxReplicas": 3}),
    "schedules": spec(
        autoscaling={
            "minReplicas": 0,
            "maxReplicas": 4,
            "schedules": [
                {**WORK, "name": "work", "timezone": "America/Argentina/Buenos_Aires"},
                {"start": "*/30 0-6/2 1,15 JAN-mar *", "durationSeconds": 60, "minReplicas": 0}
                | {"maxReplicas": 8, "timezone": "Etc/GMT+5"},
            ],
        }
    ),
    "labels": spec(podTemplate={"labels": {"team": "a"}, "annotations": {"a.b/c": "text"}}),
    "affinity": spec(podTemplate={"affinity": {"nodeAffinity": {"anything": [1]}}}),
}


def upstream(**more: Any) -> dict[str, Any]:
    """A model that one server of others serves."""
    return {"model": {}, "external": {"urls": [{"url": "https://a.example/v1", **more}]}}


SECRET_KEY = {"secretRef": {"name": "s", "key": "k"}}
ACCEPTED |= {
    "a server of others": upstream(),
    "all of a server of others": upstream(
        model="large-2",
        key=SECRET_KEY,
        keyHeader="x-api-key",
        caBundle="-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
        serverName="b.example",
        healthPath="/health?x=1",
    ),
    "a server of the cluster": upstream(
        url="http://vllm.models.svc:8000", key=SECRET_KEY, allowPlainKey=True
    ),
    "a server by its address": upstream(url="http://[fd00::1]:8000/x/v1/"),
    "pods of others": {
        "model": {},
        "external": {
            "pods": {"matchLabels": {"app": "x"}, "port": 1, "engine": "vllm", "model": "a/b"}
        },
    },
    "fallbacks": spec(fallbacks=["a", "org/b"], router={"fallbackSeconds": 0}),
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({}, "spec.model: Required value"),
    "neither model nor servers": ({"model": {}}, "model.uri is missing or not alone"),
    "model and servers": (
        {**upstream(), "model": {"uri": HUB}},
        "model.uri is missing or not alone",
    ),
    "servers' revision": (
        {**upstream(), "model": {"revision": "x"}},
        "revision and secretRef are of a model with uri",
    ),
    **{
        f"servers' {part}": (
            {**upstream(), part: content},
            f"no engine is made for external; remove {part}",
        )
        for part, content in {
            "engine": {"config": {"seed": 1}},
            "resources": {"requests": {"ephemeral-storage": "1Gi"}},
            "parallelism": {"tensor": 2},
            "podTemplate": {"labels": {"a": "b"}},
            "profile": "h100",
        }.items()
    },
    "servers' image": (
        {**upstream(), "engine": {"image": "own:1"}},
        "no engine is made for external; remove engine",
    ),
    "servers' gpus": (
        {**upstream(), "resources": {"limits": {GPU: 1}}},
        "no engine is made for external; remove resources",
    ),
    "servers' cache": ({**upstream(), "cache": {}}, "no engine is made for external"),
    "pods of no label": (
        {"model": {}, "external": {"pods": {"matchLabels": {}}}},
        "should have at least 1 properties",
    ),
    "no server": ({"model": {}, "external": {"urls": []}}, "external names no server"),
    "server's scheme": (upstream(url="ftp://a.example"), "should match"),
    "server's user": (upstream(url="https://u:p@a.example/v1"), "should match"),
    "server's key on one machine": (upstream(key={"env": "A"}), "env and file are for one machine"),
    "server's keys": (upstream(key={}), "give one of secretRef, env and file"),
    "server's key in the open": (
        upstream(url="http://a.example", key=SECRET_KEY),
        "the key would be sent without TLS",
    ),
    "server's authorities": (
        upstream(url="http://a.example", serverName="b.example"),
        "caBundle and serverName are for TLS",
    ),
    "fallbacks": (spec(fallbacks=["a", "a"]), "Duplicate value"),
    "scheme": (spec("ftp://x"), "uri must be hf://ORG/NAME"),
    "path": (spec("/models/x"), "uri must be hf://ORG/NAME"),
    "revision": (spec(TINY, model={"revision": "x"}), "revision has a meaning only with hf://"),
    "revisions": (spec("hf://a/b@x", model={"revision": "y"}), "revision and the revision in uri"),
    "secret": (spec(TINY, model={"secretRef": {"name": "s"}}), "secretRef is for downloads"),
    "alias": (spec(model={"name": "a", "aliases": ["a"]}), "name is among the aliases too"),
    "own name": (spec(model={"aliases": ["own"]}), "deployment's own name is among the aliases"),
    "aliases": (spec(model={"aliases": ["a", "a"]}), "Duplicate value"),
    "quantisation": (spec(model={"quantization": "int8"}), 'Unsupported value: "int8"'),
    "quantisation's flag": (
        spec(engine={"args": ["--quantization", "fp8"]}),
        "use spec.model.quantization",
    ),
    "flag": (spec(engine={"args": ["--port=1"]}), "--port cannot be an extra argument: it is set"),
    "field's flag": (spec(engine={"args": ["--seed", "1"]}), "use spec.engine.config.seed"),
    "env's name": (
        spec(engine={"env": [{"name": "KVASIR_FLEET_SECRET", "value": "x"}]}),
        "this variable is set by Kvasir",
    ),
    "env's value": (spec(engine={"env": [{"name": "A"}]}), "give either value or valueFrom"),
    **REFUSED_ENGINES,
    "env twice": (
        spec(engine={"env": [{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]}),
        "Duplicate value",
    ),
    "memory": (
        spec(engine={"config": {"kvCacheMemoryBytes": "much"}}),
        "write an amount of memory, for example 24Gi",
    ),
    "kv type": (spec(engine={"kvCacheDtype": "int8"}), 'Unsupported value: "int8"'),
    "kv type by flag": (
        spec(engine={"args": ["--kv-cache-dtype", "fp8"]}),
        "use spec.engine.kvCacheDtype",
    ),
    "no memory": (spec(engine={"config": {"kvCacheMemoryBytes": 0}}), "write an amount of memory"),
    "quantity": (spec(resources={"limits": {"cpu": "-1"}}), "write a quantity, for example"),
    "gpu count": (spec(resources={"limits": {GPU: "many"}}), "write a whole number of GPUs"),
    "tensor": (
        spec(parallelism={"tensor": "some"}),
        "write a number of GPUs from 1 to 64, or auto",
    ),
    **REFUSED_GPUS,
    **REFUSED_LORA,
    "gpus and tensor": (spec(resources={"limits": {GPU: 2}}), "and parallelism.tensor differ"),
    "cuda": (
        spec(engine={"config": {"device": "cuda"}}),
        "engine.config.device cuda needs resources.limits nvidia.com/gpu",
    ),
    "cpu": (
        spec(resources={"limits": {GPU: 1}}, engine={"config": {"device": "cpu"}}),
        "engine.config.device cpu uses no GPU",
    ),
    "sim and auto": (
        spec(parallelism={"tensor": "auto"}, engine={"config": {"device": "sim"}}),
        "parallelism.tensor auto is for device cuda",
    ),
    "auto": (spec(TINY, parallelism={"tensor": "auto"}), "needs a model that is downloaded"),
    "cache": (spec(TINY, cache={}), "cache is for models that are downloaded"),
    "claim": (spec(cache={"pvc": {"claimName": "c", "size": "1Gi"}}), "names an existing claim"),
    "account": (
        spec(cache={"download": {"serviceAccount": {"name": "a", "annotations": {"b.c/d": "e"}}}}),
        "annotations are of the ServiceAccount that is made",
    ),
    "deadline": (spec(cache={"download": {"deadlineSeconds": 5}}), "greater than or equal to 60"),
    "file": (spec("file:///models/x"), "file:// names a directory inside the engine's image"),
    "rollout": (
        spec(rolloutStrategy={"maxSurge": 0}),
        "maxSurge and maxUnavailable cannot both be 0",
    ),
    "scaling": (
        spec(autoscaling={"minReplicas": 3, "maxReplicas": 2}),
        "minReplicas is above maxReplicas",
    ),
    "label": (
        spec(podTemplate={"labels": {"kvasir.dev/x": "y"}}),
        "keys under kvasir.dev/ and app.kubernetes.io/ are set by Kvasir",
    ),
    "share": (
        spec(rolloutStrategy={"maxSurge": "101%"}),
        "write a number from 0 to 64, or a share of the replicas, for example 25%",
    ),
    "canary for nobody": (
        spec(rollout={"canary": {"steps": [{"weight": 0}]}}),
        "a step needs a weight above 0 or matches; give one of them",
    ),
    "match of both": (
        spec(
            rollout={
                "canary": {
                    "steps": [{"matches": [{"keyId": "a", "header": {"name": "b", "value": "c"}}]}]
                }
            }
        ),
        "a match has either header or keyId; give one of them",
    ),
    "match of nothing": (
        spec(rollout={"canary": {"steps": [{"matches": [{}]}]}}),
        "a match has either header or keyId; give one of them",
    ),
    "whole canary": (
        spec(rollout={"canary": {"steps": [{"weight": 100}]}}),
        "should be less than or equal to 99",
    ),
    "canary without steps": (
        spec(rollout={"canary": {"steps": []}}),
        "should have at least 1 items",
    ),
    "many evictions": (spec(disruption={"maxUnavailable": 65}), "write a number from 0 to 64"),
    "no share": (
        spec(rolloutStrategy={"maxSurge": "0%", "maxUnavailable": 0}),
        "maxSurge and maxUnavailable cannot both be 0; raise one",
    ),
    **{name: (spec(template=template), told) for name, (template, told) in TAKEN.items()},
    "cron": (
        scheduled(start="0 24 * * *"),
        "start 0 24 * * * is no cron expression; write five fields: minute, hour, day of month",
    ),
    "cron's fields": (scheduled(end="0 0 8 * * *"), "end 0 0 8 * * * is no cron expression"),
    "cron's step": (scheduled(start="*/0 8 * * *"), "start */0 8 * * * is no cron expression"),
    "cron's words": (scheduled(start="@weekly   "), "start @weekly    is no cron expression"),
    "zone": (scheduled(timezone="Mars/Base"), "Mars/Base"),
    "offset": (
        scheduled(timezone="+02:00"),
        "timezone +02:00 is no time zone; write one of the IANA database, for example",
    ),
    "local zone": (scheduled(timezone="Local"), "timezone Local is no time zone"),
    "no end": (scheduled(end=None), "a schedule ends either at end or after durationSeconds"),
    "two ends": (scheduled(durationSeconds=60), "a schedule ends either at end or after"),
    "end at start": (scheduled(end=WORK["start"]), "start and end are the same"),
    "bounds of a schedule": (
        scheduled(minReplicas=3, maxReplicas=2),
        "the schedule's minReplicas is above its maxReplicas",
    ),
    "schedule beyond the maximum": (
        scheduled(minReplicas=5),
        "the largest minReplicas of the spec and a schedule is above that one's maxReplicas",
    ),
    "no schedule": (
        spec(autoscaling={"maxReplicas": 4, "schedules": []}),
        "should have at least 1 items",
    ),
    "no target": (
        spec(autoscaling={"maxReplicas": 3, "targets": {}}),
        "targets has none; give one, such as concurrency, or remove it",
    ),
    **{
        f"{name} of others": (
            spec(autoscaling={"controller": "hpa", "maxReplicas": 3, name: value}),
            "targets, behavior, schedules and minReplicas 0 are for controller kvasir",
        )
        for name, value in (
            ("targets", {"queue": 1}),
            ("behavior", {}),
            ("minReplicas", 0),
            ("schedules", [WORK]),
        )
    },
    "policy": (spec(router={"policy": "best"}), "Unsupported value"),
    "addresses": (
        spec(networkPolicy={"egressCidrs": ["192.0.2.1/24"]}),
        "write addresses as a CIDR without host bits",
    ),
    "replicas": (spec(replicas=65), "should be less than or equal to 64"),
}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "shrink": ({"size": "5Gi"}, {"size": "4Gi"}, "a volume cannot shrink"),
    "class": (
        {"storageClassName": "a"},
        {"storageClassName": "b"},
        "storageClassName of an existing volume cannot change",
    ),
    "modes": (
        {"accessModes": ["ReadWriteOnce"]},
        {"accessModes": ["ReadWriteMany"]},
        "accessModes of an existing volume cannot change",
    ),
}
EXTERNAL_LATER = "external cannot be set or removed later"
NAMES = {
    "a" * 53: "metadata.name is longer than 52 characters",
    "a.b": "metadata.name must begin with a letter",
    "1a": "metadata.name must begin with a letter",
}
